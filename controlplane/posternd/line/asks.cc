// asks.cc - see asks.h.
// SPDX-License-Identifier: Apache-2.0
#include "asks.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "../kit/log.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kRoundMs = 500;
constexpr uint64_t kRoundsMax = 4;  // that long an answer may take, and a round more

}  // namespace

Asks::Asks(event_base* base, uint32_t whose)
    : whose_(whose), timer_(base, -1, 0, [this] { Tick(); }) {}

void Asks::Ask(Client& line, ctl::Msg question, SharedFd fd, Done done) {
  do {
    next_ = (next_ + 1) & ~ctl::kBrokerSeq;
  } while (next_ == 0 || open_.count(next_ | whose_) != 0);
  question.seq = next_ | whose_;
  question.status = 0;
  open_[question.seq] = {&line, std::move(done), round_};
  ++count_[&line];
  if (!timer_.pending()) timer_.AddMs(kRoundMs);
  line.Send(question, std::move(fd));
}

bool Asks::OnAnswer(const Client& line, const ctl::Msg& message, UniqueFd& fd) {
  if (message.seq == 0 || (message.seq & ctl::kBrokerSeq) != whose_) return false;
  const auto it = open_.find(message.seq);
  if (it == open_.end() || it->second.line != &line) return true;  // too late
  const Done done = std::move(it->second.done);
  open_.erase(it);
  if (--count_[&line] == 0) count_.erase(&line);
  answered_ = round_;
  done(message.status >= 0 ? message.status : EPROTO, message, std::move(fd));
  return true;
}

size_t Asks::open(const Client& line) const {
  const auto it = count_.find(&line);
  return it != count_.end() ? it->second : 0;
}

void Asks::OnGone(const Client& line) {
  count_.erase(&line);
  std::vector<Done> lost;
  for (auto it = open_.begin(); it != open_.end();) {
    if (it->second.line == &line) {
      lost.push_back(std::move(it->second.done));
      it = open_.erase(it);
    } else {
      ++it;
    }
  }
  for (const Done& done : lost) done(EPIPE, {}, {});
}

void Asks::Tick() {
  ++round_;
  for (auto& [seq, question] : open_) {
    const uint64_t since = whose_ == 0 ? std::max(question.round, answered_) : question.round;
    if (round_ - since <= kRoundsMax) continue;
    Warn("pid %d does not answer: cut off", question.line->pid());
    question.line->Break();  // OnGone comes from the loop
  }
  if (!open_.empty()) timer_.AddMs(kRoundMs);
}

}  // namespace postern::daemon
