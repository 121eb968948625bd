// vis.cc - see vis.h.
// SPDX-License-Identifier: Apache-2.0
#include "vis.h"

#include <fcntl.h>
#include <linux/if_xdp.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "../kit/log.h"
#include "../steer/tap_open.h"
#include "base/ip_address.h"

namespace postern::daemon {
namespace {

// The kernel gives back an ended VI's queues by a deferred work; the second word is for a process
// that came too early, or while another of its family asked.
constexpr uint32_t kFreeSoonMs = 50, kFreeMs = 1000;
constexpr uint32_t kOwnerGraceMs = 30'000;  // for owners to come to a new posternd
constexpr uint32_t kDriverRetryMs = 100, kDriverMuteMs = 10'000;
constexpr char kSoft[] = "soft:", kTap[] = "tap:";

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; list != "off" && at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) names.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

uint64_t NewId() {
  uint64_t id = 0;
  (void)!getrandom(&id, sizeof(id), 0);
  return id;
}

UniqueFd AddressSocket() {
  UniqueFd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (!fd.ok() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return {};
  return fd;
}

}  // namespace

Vis::Vis(event_base* base, const std::string& interfaces)
    : base_(base),
      interfaces_allowed_(Split(interfaces)),
      free_soon_(base, -1, 0, [this] { TellFree(); }),
      free_(base, -1, 0, [this] { TellFree(); }),
      listeners_(base) {
  if (enabled()) worker_.Start();
  for (const std::string& name : interfaces_allowed_) {
    const bool is_tap = name.starts_with(kTap);
    const char* const here = name.c_str() + (is_tap ? sizeof(kTap) - 1 : 0);
    if (name != "any" && !name.starts_with(kSoft) && if_nametoindex(here) == 0)
      Warn("VI on %s: there is no such interface here; it may come", here);
  }
}

Vis::~Vis() = default;

bool Vis::IsListed(const std::string& word) const {
  return std::find(interfaces_allowed_.begin(), interfaces_allowed_.end(), word) !=
         interfaces_allowed_.end();
}

bool Vis::IsAllowed(const ViAsker& asker, const std::string& name) const {
  if (asker.may_have && !asker.may_have(name)) return false;
  return IsListed("any") || IsListed(name) || IsListed(kTap + name) || IsListed(kSoft + name);
}

// ---- interfaces --------------------------------------------------------------------------------

// What can come from a wire: not what is the loopback's (RFC 1122, 3.2.1.3).
std::vector<pstn_addr> Vis::Reachable(std::vector<pstn_addr> all) {
  all.erase(std::remove_if(all.begin(), all.end(), AddrIsLoopback), all.end());
  return all;
}

void Vis::AddressesChanged(Interface& interface) {
  char buffer[8192];
  for (;;) {
    const ssize_t got = recv(interface.netlink.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno != ENOBUFS && errno != EINTR) break;
  }
  (void)In(interface, [&interface] {
    interface.addresses = Reachable(LocalAddresses());
    interface.steering->SetLocal(interface.addresses);
    return 0;
  });
}

void Vis::WatchAddresses(Interface& interface) {
  if (!interface.netlink.ok())
    return Warn("VI on %s: changes of addresses will not be seen", interface.name.c_str());
  interface.changed = std::make_unique<Event>(base_, interface.netlink.get(),
                                              static_cast<short>(EV_READ | EV_PERSIST),
                                              [this, at = &interface] { AddressesChanged(*at); });
  interface.changed->Add();
}

// What no process has shown a socket for: its port may be another program's by now.
void Vis::SweepInherited(Interface& interface) {
  const auto keep = [&](uint32_t slot, const std::string& key) {
    return std::any_of(vis_.begin(), vis_.end(), [&](const auto& vi) {
      return vi.second->interface == &interface && vi.second->slot == slot &&
             vi.second->uses.count(key) != 0;
    });
  };
  (void)In(interface, [&] {
    interface.steering->Sweep(keep);
    return 0;
  });
}

// In its network namespace.
int Vis::Attach(Interface& interface) {
  if (IsListed(kSoft + interface.name)) {
    auto soft = std::make_unique<SoftNic>(interface.key.second, interface.name);
    if (const int error = soft->Connect(); error != 0) {
      if (error == -ENETDOWN)
        Warn("VI on %s: there is no driver: is postern-softnic, or postern-verbsnic, running?",
             interface.name.c_str());
      return error;
    }
    interface.soft = soft.get();
    interface.steering = std::move(soft);
    return 0;
  }
  if (IsListed(kTap + interface.name)) {
    auto tap = std::make_unique<TapProgram>();
    const int error = tap->Attach(interface.key.second, interface.name);
    interface.tap = tap.get();
    interface.steering = std::move(tap);
    return error;
  }
  auto xdp = spare_ != nullptr ? std::move(spare_) : std::make_unique<XdpProgram>();
  const int error = xdp->Attach(interface.key.second, interface.name);
  interface.xdp = xdp.get();
  interface.steering = std::move(xdp);
  return error;
}

// A driver that has died is waited for: the VIs stay, and the next one is told of them.
void Vis::DriverGone(Interface& interface) {
  if (interface.soft->connected()) {
    Warn("VI on %s: its driver is gone", interface.name.c_str());
    interface.driver.reset();
    interface.soft->Disconnect();
  }
  const auto began = std::chrono::steady_clock::now();
  if (In(interface, [&interface] { return interface.soft->Connect(); }) == 0) {
    Inform("VI on %s: its driver is back", interface.name.c_str());
    return WatchDriver(interface);
  }
  // One that is there and does not answer holds us up.
  const bool is_mute = std::chrono::steady_clock::now() - began > std::chrono::seconds(1);
  interface.driver =
      std::make_unique<Event>(base_, -1, 0, [this, at = &interface] { DriverGone(*at); });
  interface.driver->AddMs(is_mute ? kDriverMuteMs : kDriverRetryMs);
}

void Vis::WatchDriver(Interface& interface) {
  interface.driver = std::make_unique<Event>(base_, interface.soft->line(), EV_READ,
                                             [this, at = &interface] { DriverGone(*at); });
  interface.driver->Add();
}

int Vis::MakeInterface(const ViAsker& asker, const UniqueFd& netns, const Key& key,
                       Interface*& made) {
  auto interface = std::make_unique<Interface>();
  interface->key = key;
  interface->netns = UniqueFd(fcntl(netns.get(), F_DUPFD_CLOEXEC, 0));
  Interface& i = *interface;
  const int error = worker_.Run(netns.get(), [this, &i, &asker] {
    NetInterface about;
    if (const int failed = ReadInterface(i.key.second, about); failed != 0) return failed;
    i.name = about.name;
    if (!IsAllowed(asker, i.name)) return -EPERM;
    i.netlink = AddressSocket();
    i.addresses = Reachable(LocalAddresses());
    const int failed = Attach(i);
    if (failed == 0) i.steering->SetLocal(i.addresses);
    return failed;
  });
  if (error != 0) return error;
  WatchAddresses(i);
  if (i.soft != nullptr) WatchDriver(i);
  if (i.steering->taken_over()) {
    i.grace = std::make_unique<Event>(base_, -1, 0, [this, &i] { SweepInherited(i); });
    i.grace->AddMs(kOwnerGraceMs);
  }
  if (i.xdp != nullptr) {
    Inform("VI on %s: the XDP program %s%s", i.name.c_str(),
           i.xdp->taken_over() ? "was attached" : "is attached",
           i.xdp->generic() ? ", in generic mode" : "");
  } else if (i.tap != nullptr) {
    Inform("VI on %s: the tcx program %s", i.name.c_str(),
           i.tap->taken_over() ? "was attached" : "is attached");
  } else {
    Inform("VI on %s: its driver is there", i.name.c_str());
  }
  made = &i;
  interfaces_.push_back(std::move(interface));
  return 0;
}

int Vis::FindInterface(const ViAsker& asker, const UniqueFd& netns, uint32_t ifindex,
                       Interface*& found) {
  struct stat st {};
  if (!netns.ok() || fstat(netns.get(), &st) != 0) return -EPERM;
  const Key key{st.st_ino, ifindex};
  // One that has been removed is not the one that has its number now.
  const auto it = std::find_if(interfaces_.begin(), interfaces_.end(), [&](const auto& i) {
    return i->key == key && In(*i, [&i] { return i->steering->attached() ? 0 : -ENODEV; }) == 0;
  });
  if (it == interfaces_.end()) return MakeInterface(asker, netns, key, found);
  found = it->get();
  return IsAllowed(asker, found->name) ? 0 : -EPERM;
}

void Vis::DropIfUnused(Interface& interface) {
  if (interface.users != 0) return;
  Inform("VI on %s: the last one is gone", interface.name.c_str());
  bool again = false;
  (void)In(interface, [&] {
    again = interface.xdp != nullptr && interface.xdp->Detach();
    if (interface.tap != nullptr) interface.tap->Detach();
    return 0;
  });
  if (again) spare_.reset(static_cast<XdpProgram*>(interface.steering.release()));
  interfaces_.erase(std::find_if(interfaces_.begin(), interfaces_.end(),
                                 [&interface](const auto& i) { return i.get() == &interface; }));
}

// ---- VIs ---------------------------------------------------------------------------------------

// The VI's line, with the grant in it.
int Vis::Grant(const ViAsker& asker, Interface& interface, uint32_t slot, ctl::ViGrant& grant,
               const std::vector<UniqueFd>& fds, UniqueFd& line) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return -errno;
  auto vi = std::make_unique<One>();
  vi->line = UniqueFd(ends[0], asker.uid);  // with what the program has sent there
  line = UniqueFd(ends[1]);
  uint64_t id = NewId();
  while (id == 0 || vis_.count(id) != 0) id = NewId();
  grant.id = id;
  std::vector<int> numbers;
  numbers.reserve(fds.size());
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  const ctl::GrantPacket packet(grant, numbers.data(), static_cast<uint32_t>(numbers.size()));
  if (sendmsg(vi->line.get(), &packet.header, MSG_NOSIGNAL) < 0) return -errno;
  vi->stack = asker.stack;
  vi->uid = asker.uid;
  vi->interface = &interface;
  vi->slot = slot;
  vi->ended = std::make_unique<Event>(base_, vi->line.get(), EV_READ, [this, id] { Ended(id); });
  vi->ended->Add();
  interface.users++;
  vis_[id] = std::move(vi);
  return 0;
}

// No process writes into the line: readable is its end. (A process that writes has ended it too.)
void Vis::Ended(uint64_t id) {
  const auto it = vis_.find(id);
  if (it == vis_.end()) return;
  std::unique_ptr<One> vi = std::move(it->second);
  vis_.erase(it);
  Interface& interface = *vi->interface;
  Note("VI on %s: its stack has let go of it", interface.name.c_str());
  vi->ended.reset();
  (void)In(interface, [&] {
    interface.steering->DropSlot(vi->slot);
    return 0;
  });
  vi.reset();  // its ports: a process that sees that the program is gone may bind them
  interface.users--;
  DropIfUnused(interface);
  free_soon_.AddMs(kFreeSoonMs);
  free_.AddMs(kFreeMs);
}

void Vis::TellFree() {
  if (on_free) on_free();
}

std::map<uint64_t, std::unique_ptr<Vis::One>>::const_iterator Vis::FindVi(
    const Interface& interface, uint32_t slot) const {
  return std::find_if(vis_.begin(), vis_.end(), [&](const auto& vi) {
    return vi.second->interface == &interface && vi.second->slot == slot;
  });
}

// Whether one of our VIs has its queues, and has not ended.
bool Vis::IsHeld(const Interface& interface) const {
  return std::any_of(vis_.begin(), vis_.end(), [&interface](const auto& entry) {
    const One& vi = *entry.second;
    pollfd line = {vi.line.get(), POLLIN, 0};
    return vi.interface == &interface && poll(&line, 1, 0) == 0;
  });
}

// A socket is tried for a tenth of a second, as its queues may not have been given back yet.
// posternd answers no client meanwhile, so it does not try if it knows that they have not: a
// process without them asks once a second.
int Vis::OpenXsk(Interface& interface, const ctl::Msg& request, const UniqueFd& area,
                 ctl::ViGrant& grant, std::vector<UniqueFd>& fds) {
  if (IsHeld(interface)) return -EBUSY;
  NetInterface about;
  if (const int failed = ReadInterface(request.a, about); failed != 0) return failed;
  const SocketsWanted wanted = {request.c, interface.xdp->generic()};
  if (const int failed = OpenSockets(about, area, wanted, fds, grant); failed != 0) return failed;
  const auto is_taken = [&](uint32_t slot) { return FindVi(interface, slot) != vis_.end(); };
  const int slot = interface.xdp->AddSockets(fds, is_taken);
  if (slot >= 0) fds.push_back(interface.xdp->CopyLink());
  return slot;
}

// Others may have VIs of this kind on the interface: each has a TAP of its own.
int Vis::OpenTapVi(Interface& interface, ctl::ViGrant& grant, std::vector<UniqueFd>& fds) {
  NetInterface about;
  UniqueFd tap, bell;
  uint32_t ifindex = 0;
  int error = ReadInterface(interface.key.second, about);
  if (error == 0) error = OpenTap(about, tap, ifindex);
  if (error != 0) return error;
  const auto is_taken = [&](uint32_t slot) { return FindVi(interface, slot) != vis_.end(); };
  const int slot = interface.tap->AddTap(ifindex, is_taken, bell);
  if (slot < 0) return slot;
  error = RaiseTap(ifindex, about.mtu);
  if (error != 0) {
    interface.tap->DropSlot(static_cast<uint32_t>(slot));
    return error;
  }
  DescribeTap(about, grant);
  fds.push_back(std::move(tap));
  fds.push_back(std::move(bell));
  fds.push_back(interface.tap->CopyLink());
  return slot;
}

int Vis::OpenSoft(Interface& interface, UniqueFd area, ctl::ViGrant& grant,
                  std::vector<UniqueFd>& fds) {
  NetInterface about;
  if (const int failed = ReadInterface(interface.key.second, about); failed != 0) return failed;
  grant.ifindex = about.ifindex;
  grant.mtu = about.mtu;
  memcpy(grant.mac, about.mac, sizeof(grant.mac));
  return interface.soft->Open(std::move(area), grant, fds);
}

int Vis::Open(const ViAsker& asker, const UniqueFd& netns, const ctl::Msg& request, UniqueFd area,
              UniqueFd& line) {
  Interface* interface = nullptr;
  if (const int error = FindInterface(asker, netns, request.a, interface); error != 0) return error;
  std::vector<UniqueFd> fds;
  ctl::ViGrant grant;
  const int slot = In(*interface, [&] {
    if (interface->tap != nullptr) return OpenTapVi(*interface, grant, fds);
    return interface->soft != nullptr ? OpenSoft(*interface, std::move(area), grant, fds)
                                      : OpenXsk(*interface, request, area, grant, fds);
  });
  const int error =
      slot < 0 ? slot : Grant(asker, *interface, static_cast<uint32_t>(slot), grant, fds, line);
  if (error != 0) DropIfUnused(*interface);
  return error;
}

// Which slot the VI has whose socket, bell or rings that is; and what its new line has to carry.
int Vis::Recognise(Interface& interface, UniqueFd token, std::vector<UniqueFd>& fds) {
  if (interface.soft != nullptr) {
    const int slot = interface.soft->Adopt(token);
    fds.push_back(std::move(token));
    return slot;
  }
  if (interface.tap != nullptr) {
    fds.push_back(interface.tap->CopyLink());
    return interface.tap->FindBell(token);
  }
  uint64_t cookie = 0;
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (getsockopt(token.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_XDP)
    return -EINVAL;
  size = sizeof(cookie);
  if (getsockopt(token.get(), SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return -errno;
  fds.push_back(interface.xdp->CopyLink());
  return interface.xdp->FindSlot(cookie);
}

int Vis::Adopt(const ViAsker& asker, const UniqueFd& netns, const ctl::Msg& request, UniqueFd token,
               UniqueFd& line, uint64_t& id) {
  Interface* interface = nullptr;
  int error = FindInterface(asker, netns, request.a, interface);
  if (error != 0) return error;
  std::vector<UniqueFd> fds;
  const int slot = In(*interface, [&] { return Recognise(*interface, std::move(token), fds); });
  error = slot < 0 ? slot : 0;
  const auto known = slot >= 0 ? FindVi(*interface, static_cast<uint32_t>(slot)) : vis_.end();
  if (known != vis_.end()) {
    error = -EEXIST;
    if (Same(known->second->stack, asker.stack)) id = known->first;
  }
  ctl::ViGrant grant;
  grant.ifindex = request.a;
  if (error == 0) error = Grant(asker, *interface, static_cast<uint32_t>(slot), grant, fds, line);
  if (error != 0) DropIfUnused(*interface);
  return error;
}

}  // namespace postern::daemon
