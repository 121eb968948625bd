// soft_nic.cc - see soft_nic.h.
// SPDX-License-Identifier: Apache-2.0
#include "soft_nic.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "../kit/log.h"
#include "base/no_descriptors.h"
#include "state/area.h"
#include "vi/packet_area.h"
#include "vi/soft/soft_rings.h"

namespace postern::daemon {
namespace {

constexpr time_t kAnswerSec = 2;  // a driver that says nothing for so long is none

UniqueFd Copy(const UniqueFd& fd) { return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

bool SameFile(int a, int b) {
  struct stat left {
  }, right{};
  return fstat(a, &left) == 0 && fstat(b, &right) == 0 && left.st_ino == right.st_ino &&
         left.st_dev == right.st_dev;
}

// Takes it out if it leads there.
template <typename Filters, typename Key>
bool Forget(Filters& filters, const Key& key, uint32_t slot) {
  const auto it = filters.find(Bytes(key));
  if (it == filters.end() || it->second.target.slot != slot) return false;
  filters.erase(it);
  return true;
}

template <typename Filters, typename Key>
int FindSlotOf(const Filters& filters, const Key& key) {
  const auto it = filters.find(Bytes(key));
  return it != filters.end() ? static_cast<int>(it->second.target.slot) : -1;
}

template <typename Filters>
void ForgetSlot(Filters& filters, uint32_t slot) {
  for (auto it = filters.begin(); it != filters.end();)
    it = it->second.target.slot == slot ? filters.erase(it) : std::next(it);
}

}  // namespace

int SoftNic::Connect() {
  UniqueFd line(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!line.ok()) return -errno;
  const timeval patience{kAnswerSec, 0};
  (void)setsockopt(line.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  (void)setsockopt(line.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_un name;
  const socklen_t size = softnic::SocketName(name_, name);
  if (connect(line.get(), reinterpret_cast<sockaddr*>(&name), size) != 0) return -ENETDOWN;
  line.CameFrom(softnic::kStrangers);
  if (!softnic::IsTrusted(line.get(), geteuid())) {
    Warn("VI on %s: its driver's name is taken by somebody else", name_.c_str());
    return -EPERM;
  }
  line.CameFrom(kOurOwn);
  line_ = std::move(line);
  softnic::Msg hello;
  hello.type = softnic::Type::kHello;
  int error = Ask(hello);
  orphans_ = vis_.empty() ? hello.slot : 0;
  caps_ = hello.caps;
  mtu_ = hello.mtu;
  if (error == 0 && !local_.empty()) error = ShowLocal();
  // A VI that the driver does not take has no number there, and its filters are refused.
  const auto show = [&](auto& what) {
    if (error == 0 && Show(what) == -ENETDOWN) error = -ENETDOWN;
  };
  for (auto& [slot, vi] : vis_) show(vi);
  for (const auto& [key, filter] : flows_) show(filter);
  for (const auto& [key, filter] : ports_) show(filter);
  if (error != 0) {
    Warn("VI on %s: its driver can't be told: %s", name_.c_str(), strerror(-error));
    Disconnect();
  }
  return error;
}

void SoftNic::Disconnect() { line_.Reset(); }

bool SoftNic::attached() const {
  char name[IF_NAMESIZE] = {};
  return if_indextoname(ifindex_, name) != nullptr && name_ == name;
}

int SoftNic::Ask(softnic::Msg& message, Luggage luggage, std::vector<UniqueFd>* answer) {
  if (!line_.ok()) return -ENETDOWN;
  softnic::Packet question(message);
  question.PutFds(luggage.fds.data(), static_cast<uint32_t>(luggage.fds.size()));
  question.Append(luggage.addresses.data(), luggage.addresses.size() * sizeof(pstn_xdp_ip));
  const softnic::Type type = message.type;
  if (sendmsg(line_.get(), &question.header, MSG_NOSIGNAL) >= 0) {
    softnic::Packet reply(message);
    reply.ExpectFds();
    const ssize_t got = recvmsg(line_.get(), &reply.header, MSG_CMSG_CLOEXEC);
    int came[softnic::kFdsMax];
    const uint32_t count = got >= 0 ? reply.TakeFds(came) : 0;
    std::vector<UniqueFd> taken;
    for (uint32_t i = 0; i < count; i++) taken.emplace_back(came[i]);
    if (answer != nullptr) *answer = std::move(taken);
    if (got == sizeof(message) && message.type == type && message.version == softnic::kProtoVersion)
      return message.status >= 0 ? -message.status : -EPROTO;
  }
  // The watcher of the line sees its end, and begins anew.
  (void)shutdown(line_.get(), SHUT_RDWR);
  return -ENETDOWN;
}

// ---- VIs ---------------------------------------------------------------------------------------

int SoftNic::Show(Held& vi) {
  softnic::Msg message;
  message.type = softnic::Type::kOpen;
  const int error = Ask(message, {{vi.area.get(), vi.rings.get(), vi.bell.get()}, {}});
  vi.there = error == 0 ? message.slot : 0;
  return error;
}

int SoftNic::Open(UniqueFd area, ctl::ViGrant& grant, std::vector<UniqueFd>& fds) {
  AreaShape shape{};  // what is none stays here: another file may take its time in the driver
  if (const int error = ReadAreaShape(area.get(), shape); error != 0) return error;
  int ends[2];
  Held vi;
  vi.area = std::move(area);
  vi.rings = UniqueFd(CreateSoftRings());
  if (!vi.rings.ok() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return -EMFILE;
  vi.bell = UniqueFd(ends[0], softnic::kBells);
  (void)RefuseDescriptors(ends[0]);
  UniqueFd bell(ends[1]);
  int error = grant.mtu + kLinkHeader <= kSoftBytesMax ? Show(vi) : -EMSGSIZE;
  if (error != 0) {
    Warn("VI on %s: %s", name_.c_str(),
         error == -EMSGSIZE   ? "its MTU is too large for a frame"
         : error == -ENETDOWN ? "its driver is gone"
                              : strerror(-error));
    return error;
  }
  grant.kind = ctl::kGrantSoft;
  grant.queue_count = 1;
  grant.fill_slots = grant.rx_slots = grant.tx_slots = grant.completion_slots = kSoftSlots;
  grant.caps = caps_;
  fds.push_back(Copy(vi.rings));
  fds.push_back(std::move(bell));
  const uint32_t slot = next_slot_++;
  vis_[slot] = std::move(vi);
  return static_cast<int>(slot);
}

int SoftNic::Adopt(const UniqueFd& rings) {
  if (SegmentBytes(rings.get()) == 0) return -EINVAL;
  for (const auto& [slot, vi] : vis_) {
    if (SameFile(vi.rings.get(), rings.get())) return static_cast<int>(slot);
  }
  softnic::Msg message;
  message.type = softnic::Type::kAdopt;
  std::vector<UniqueFd> fds;
  const int error = Ask(message, {{rings.get()}, {}}, &fds);
  if (error != 0) return error;
  if (fds.size() != softnic::kFdsMax) return -EPROTO;
  const uint32_t slot = next_slot_++;
  vis_[slot] = {std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), message.slot};
  return static_cast<int>(slot);
}

void SoftNic::DropSlot(uint32_t slot) {
  const auto it = vis_.find(slot);
  if (it == vis_.end()) return;
  ForgetSlot(flows_, slot);
  ForgetSlot(ports_, slot);
  softnic::Msg message;
  message.type = softnic::Type::kClose;
  message.slot = it->second.there;
  (void)Ask(message);
  vis_.erase(it);
}

// ---- filters: what a driver that is gone can't be told, the next one is -------------------------

int SoftNic::Show(const Filter<pstn_xdp_flow>& filter) {
  softnic::Msg message;
  message.type = softnic::Type::kAddFlow;
  message.flow = filter.key;
  message.slot = vis_[filter.target.slot].there;
  message.flags = filter.target.flags;
  message.uid = filter.target.uid;
  return Ask(message);
}

int SoftNic::Show(const Filter<pstn_xdp_port>& filter) {
  softnic::Msg message;
  message.type = softnic::Type::kAddPort;
  message.port = filter.key;
  message.slot = vis_[filter.target.slot].there;
  message.flags = filter.target.flags;
  message.uid = filter.target.uid;
  return Ask(message);
}

int SoftNic::AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target) {
  const auto& filter = flows_[Bytes(flow)] = {flow, target};
  const int error = Show(filter);
  if (error != 0 && error != -ENETDOWN) flows_.erase(Bytes(flow));
  return error == -ENETDOWN ? 0 : error;
}

int SoftNic::AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target) {
  const auto& filter = ports_[Bytes(port)] = {port, target};
  const int error = Show(filter);
  if (error != 0 && error != -ENETDOWN) ports_.erase(Bytes(port));
  return error == -ENETDOWN ? 0 : error;
}

int SoftNic::SlotOf(const pstn_xdp_flow& flow) const { return FindSlotOf(flows_, flow); }

int SoftNic::SlotOf(const pstn_xdp_port& port) const { return FindSlotOf(ports_, port); }

void SoftNic::RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) {
  if (!Forget(flows_, flow, slot)) return;
  softnic::Msg message;
  message.type = softnic::Type::kRemoveFlow;
  message.flow = flow;
  message.slot = vis_[slot].there;
  (void)Ask(message);
}

void SoftNic::RemovePort(const pstn_xdp_port& port, uint32_t slot) {
  if (!Forget(ports_, port, slot)) return;
  softnic::Msg message;
  message.type = softnic::Type::kRemovePort;
  message.port = port;
  message.slot = vis_[slot].there;
  (void)Ask(message);
}

// All that we know of is to be kept; what we don't, the driver does.
void SoftNic::Sweep(const Keep&) {
  softnic::Msg message;
  message.type = softnic::Type::kSweep;
  (void)Ask(message);
}

int SoftNic::ShowLocal() {
  std::vector<pstn_xdp_ip> all(std::min<size_t>(local_.size(), PSTN_XDP_LOCAL_MAX));
  for (size_t i = 0; i < all.size(); i++) memcpy(all[i].byte, local_[i].ip, sizeof(all[i].byte));
  softnic::Msg message;
  message.type = softnic::Type::kLocal;
  message.slot = static_cast<uint32_t>(all.size());
  return Ask(message, {{}, std::move(all)});
}

void SoftNic::SetLocal(const std::vector<pstn_addr>& addresses) {
  local_ = addresses;
  (void)ShowLocal();
}

}  // namespace postern::daemon
