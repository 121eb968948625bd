// SPDX-License-Identifier: Apache-2.0
// world.cc - paths between hosts, and the run of a world until all is over.
#include "world.h"

namespace postern::sim {

// ---- Path

void Path::Send(Segment segment) {
  segment.hop = 0;
  Offer(std::move(segment));
}

void Path::Offer(Segment&& segment) {
  Hop& hop = hops_[segment.hop];
  const uint64_t now_ns = world_.events().now_ns();
  if (segment.ip_bytes > hop.mtu) {
    if (hop.tells)
      world_.host(segment.from).TooBig(segment.from_port, segment.to, segment.to_port, hop.mtu);
    return;
  }
  const bool markable = segment.in.ecn != tcp::Ecn::kNotEct;
  const LinkVerdict verdict = hop.link->Offer(now_ns, segment.ip_bytes, markable);
  if (verdict.marked) segment.in.ecn = tcp::Ecn::kCe;
  segment.corrupt |= verdict.corrupt;
  segment.hop++;
  for (uint32_t i = 0; i < verdict.copies; i++) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(flying_.size()));
      flying_.emplace_back();
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    if (i + 1 < verdict.copies) {
      flying_[slot] = segment;
    } else {
      flying_[slot] = std::move(segment);
    }
    world_.events().At(verdict.arrive_ns[i], *this, slot);
  }
}

void Path::Happen(uint64_t slot) {
  Segment segment = std::move(flying_[slot]);
  free_.push_back(static_cast<uint32_t>(slot));
  if (segment.hop < hops_.size()) {
    Offer(std::move(segment));
  } else {
    world_.host(segment.to).Arrive(std::move(segment));
  }
}

// ---- World

SimHost& World::AddHost(const HostSettings& settings) {
  const uint32_t id = static_cast<uint32_t>(hosts_.size());
  hosts_.push_back(std::make_unique<SimHost>(*this, id, settings, random_.Next()));
  return *hosts_.back();
}

LinkModel& World::AddLink(const LinkSettings& settings) {
  links_.push_back(std::make_unique<LinkModel>(settings, random_.Next()));
  return *links_.back();
}

void World::Join(uint32_t from, uint32_t to, std::vector<Path::Hop> hops) {
  paths_[{from, to}] = std::make_unique<Path>(*this, std::move(hops));
}

void World::JoinBoth(uint32_t a, uint32_t b, const LinkSettings& settings, uint32_t mtu) {
  Join(a, b, {{&AddLink(settings), mtu}});
  Join(b, a, {{&AddLink(settings), mtu}});
}

bool World::AllClosed() const {
  for (const auto& host : hosts_) {
    for (const auto& conn : host->conns()) {
      if (!conn->closed) return false;
    }
  }
  return true;
}

void World::Run(uint64_t limit_ns) {
  const uint64_t end_ns = events_.now_ns() + limit_ns;
  // What flies after the last connection was closed is answered, too: so until nothing is left.
  while (Problem().empty() && !events_.empty()) {
    if (events_.next_ns() > end_ns) {
      timed_out_ = !AllClosed();
      return;
    }
    events_.RunOne();
  }
}

void World::RunFor(uint64_t ns) {
  const uint64_t end_ns = events_.now_ns() + ns;
  while (Problem().empty() && events_.next_ns() <= end_ns) events_.RunOne();
  events_.AdvanceTo(end_ns);
}

std::string World::Problem() const {
  for (size_t i = 0; i < hosts_.size(); i++) {
    if (!hosts_[i]->problem().empty())
      return "host " + std::to_string(i) + ": " + hosts_[i]->problem();
  }
  return "";
}

std::string World::Verdict() {
  if (const std::string problem = Problem(); !problem.empty()) return problem;
  for (size_t i = 0; i < hosts_.size(); i++) {
    for (const auto& conn : hosts_[i]->conns()) {
      const std::string who = "host " + std::to_string(i) + " connection " +
                              std::to_string(conn->id) + " in state " +
                              std::to_string(conn->state) + ": ";
      // A SYN that came twice, or too late, has made a connection that its peer knew nothing of.
      if (conn->is_passive && !conn->connected && conn->closed) continue;
      const std::string missing = conn->app->Missing(*conn);
      if (!missing.empty()) return who + missing;
      if (!conn->closed) return who + (timed_out_ ? "not closed in time" : "hangs: no timer runs");
    }
    hosts_[i]->CheckEmpty();
  }
  return Problem();
}

}  // namespace postern::sim
