// nic_control.cc - what posternd asks of the driver (softnic_proto.h).
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "nic.h"
#include "vi/vi.h"

namespace postern::softnic {
namespace {

constexpr size_t kPosterndsMax = 16;  // the user's, the host's, of tests
constexpr size_t kVisMax = 256;       // each is looked at in each turn

}  // namespace

int Nic::Listen(const std::string& interface) {
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un name;
  const socklen_t size = SocketName(interface, name);
  if (!listener_.ok() ||
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0 ||
      listen(listener_.get(), 8) != 0)
    return -errno;
  Watch(What::kListener, 0, listener_.get());
  return 0;
}

void Nic::Accept() {
  UniqueFd line(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  line.CameFrom(kStrangers);
  if (!line.ok() || posternds_.size() >= kPosterndsMax || !IsTrusted(line.get(), geteuid())) return;
  line.CameFrom(daemon::kOurOwn);
  const uint32_t number = next_posternd_++;
  Watch(What::kPosternd, number, line.get());
  posternds_[number] = std::move(line);
}

void Nic::Serve(uint32_t posternd) {
  const auto it = posternds_.find(posternd);
  if (it == posternds_.end()) return;
  Msg message;
  std::vector<pstn_xdp_ip> addresses(PSTN_XDP_LOCAL_MAX);
  Packet packet(message);
  packet.Append(addresses.data(), addresses.size() * sizeof(pstn_xdp_ip));
  packet.ExpectFds();
  const ssize_t got = recvmsg(it->second.get(), &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got < static_cast<ssize_t>(sizeof(message)) || message.version != kProtoVersion) {
    // It has died, or is of another version. Its VIs wait for the next one.
    for (ViClient* const vi : vis_.all()) {
      if (vi->owner == posternd) vi->owner = 0;
    }
    Unwatch(it->second.get());
    posternds_.erase(it);
    return;
  }
  int fds[kFdsMax] = {-1, -1, -1};
  const uint32_t count = packet.TakeFds(fds);
  const size_t bytes = static_cast<size_t>(got) - sizeof(message);
  Answer(posternd, message, fds, count, addresses.data(), bytes / sizeof(pstn_xdp_ip));
}

int Nic::Open(uint32_t posternd, UniqueFd area, UniqueFd rings, UniqueFd bell, Msg& message) {
  if (vis_.all().size() >= kVisMax) return -ENOSPC;
  auto vi = std::make_unique<ViClient>();
  if (const int error = vi->Map(std::move(area), std::move(rings), std::move(bell)); error != 0)
    return error;
  ViClient& added = vis_.Add(std::move(vi));
  added.owner = posternd;
  added.driver.SetLink(link_up_);
  Watch(What::kBell, added.slot, added.bell.get());
  message.slot = added.slot;
  return 0;
}

void Nic::DropRules() {
  port_.KeepOnly([this](const pstn_xdp_flow& flow) { return steer_.HasFlow(flow); },
                 [this](const pstn_xdp_port& port) { return steer_.HasPort(port); });
}

// First here: what the card lets through has an owner then.
int Nic::Add(const Msg& message, const pstn_xdp_target& target, uint64_t owner) {
  const bool is_flow = message.type == Type::kAddFlow;
  int error = is_flow ? steer_.AddFlow(message.flow, target, owner)
                      : steer_.AddPort(message.port, target, owner);
  if (error != 0) return error;
  error = is_flow ? port_.AddFlow(message.flow, target.flags)
                  : port_.AddPort(message.port, target.flags);
  if (error == 0) return 0;
  if (is_flow)
    steer_.RemoveFlow(message.flow, target.slot);
  else
    steer_.RemovePort(message.port, target.slot);
  return error;
}

void Nic::End(uint32_t slot) {
  steer_.DropSlot(slot);
  DropRules();
  if (const ViClient* const vi = vis_.At(slot); vi != nullptr) Unwatch(vi->bell.get());
  vis_.Remove(slot);
}

void Nic::Answer(uint32_t posternd, Msg& message, int (&fds)[kFdsMax], uint32_t count,
                 const pstn_xdp_ip* addresses, size_t address_count) {
  UniqueFd taken[kFdsMax];
  for (uint32_t i = 0; i < count; i++) taken[i] = UniqueFd(fds[i]);
  const pstn_xdp_target target = {message.slot, message.flags, message.uid};
  int answer[kFdsMax];
  uint32_t answers = 0;
  int error = 0;
  switch (message.type) {
    case Type::kHello: {
      const auto& all = vis_.all();
      message.slot = static_cast<uint32_t>(
          std::count_if(all.begin(), all.end(), [](const ViClient* vi) { return vi->owner == 0; }));
      message.caps = port_.may_be_partial() ? kCapRxPartial : 0;
      message.mtu = port_.mtu();
      break;
    }
    case Type::kOpen:
      error = count != 3 ? -EINVAL
                         : Open(posternd, std::move(taken[0]), std::move(taken[1]),
                                std::move(taken[2]), message);
      break;
    case Type::kAdopt: {
      ViClient* const vi = count == 1 ? vis_.WithRings(taken[0].get()) : nullptr;
      if (vi == nullptr || vi->owner != 0) {
        error = vi == nullptr ? -ENOENT : -EBUSY;
        break;
      }
      vi->owner = posternd;
      message.slot = vi->slot;
      answer[answers++] = vi->area_fd.get();
      answer[answers++] = vi->rings_fd.get();
      answer[answers++] = vi->bell.get();
      break;
    }
    case Type::kClose:
      End(message.slot);
      break;
    case Type::kAddFlow:
    case Type::kAddPort:
      if (vis_.At(message.slot) == nullptr)
        error = -ENOENT;  // it has ended meanwhile
      else
        error = Add(message, target, posternd);
      break;
    case Type::kRemoveFlow:
      steer_.RemoveFlow(message.flow, message.slot);
      if (!steer_.HasFlow(message.flow)) port_.RemoveFlow(message.flow);
      break;
    case Type::kRemovePort:
      steer_.RemovePort(message.port, message.slot);
      if (!steer_.HasPort(message.port)) port_.RemovePort(message.port);
      break;
    case Type::kLocal:
      steer_.SetLocal(addresses,
                      static_cast<uint32_t>(std::min<size_t>(address_count, message.slot)));
      break;
    case Type::kSweep:
      steer_.Sweep(
          [this](uint64_t owner) { return posternds_.count(static_cast<uint32_t>(owner)) != 0; });
      DropRules();
      break;
    default:
      error = -EOPNOTSUPP;
  }
  message.status = -error;
  Packet packet(message);
  packet.PutFds(answer, answers);
  const auto line = posternds_.find(posternd);
  // It waits for this and reads nothing else, so there is room.
  if (line != posternds_.end())
    (void)!sendmsg(line->second.get(), &packet.header, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace postern::softnic
