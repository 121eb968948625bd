// vis_filters.cc - the filters of VIs: which packets come to which.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../guard/patience.h"
#include "source_port.h"
#include "stack/source_ports.h"
#include "vis.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kFlags = PSTN_XDP_PASS | PSTN_XDP_FRAGMENTS;
constexpr size_t kFiltersMax = 65536;                    // of one VI: each keeps a descriptor
constexpr uint32_t kKeptPortsMax = stack::kSourcePorts;  // of one VI

static_assert(ctl::kFilterPass == PSTN_XDP_PASS && ctl::kFilterFragments == PSTN_XDP_FRAGMENTS &&
              ctl::kFilterOutgoing == PSTN_XDP_OUTGOING);

}  // namespace

// All of it or nothing.
int Vis::Install(One& vi, FilterKeys& keys, uint32_t flags) {
  const pstn_xdp_target target = {vi.slot, flags, keys.uid};
  Steering& steering = *vi.interface->steering;
  FilterKeys done;
  int error = 0;
  for (const pstn_xdp_flow& flow : keys.flows) {
    // The first of two users that have bound the port and connect to one peer has the connection,
    // as with the kernel.
    const int has = flow.protocol == IPPROTO_TCP ? steering.SlotOf(flow) : -1;
    if (has >= 0 && static_cast<uint32_t>(has) != vi.slot) error = -EADDRINUSE;
    if (error == 0) error = steering.AddFlow(flow, target);
    if (error == 0) done.flows.push_back(flow);
  }
  for (const pstn_xdp_port& port : keys.ports) {
    if (error == 0) error = steering.AddPort(port, target);
    if (error == 0) done.ports.push_back(port);
  }
  for (const pstn_xdp_flow& flow : done.flows) vi.uses[Bytes(flow)]++;
  for (const pstn_xdp_port& port : done.ports) vi.uses[Bytes(port)]++;
  if (error != 0) Remove(vi, done);
  return error;
}

void Vis::Remove(One& vi, const FilterKeys& keys) {
  Steering& steering = *vi.interface->steering;
  // Whether it was the last use; what was never installed has none.
  const auto last = [&vi](const std::string& key) {
    const auto it = vi.uses.find(key);
    if (it == vi.uses.end() || --it->second != 0) return false;
    vi.uses.erase(it);
    return true;
  };
  for (const pstn_xdp_flow& flow : keys.flows) {
    if (last(Bytes(flow))) steering.RemoveFlow(flow, vi.slot);
  }
  for (const pstn_xdp_port& port : keys.ports) {
    if (last(Bytes(port))) steering.RemovePort(port, vi.slot);
  }
}

// A port that no program has, for connections that are made from it.
int Vis::KeepPort(One& vi, const ctl::Msg& request, ctl::Msg& answer) {
  if (vi.kept_ports >= kKeptPortsMax) return -ENOSPC;
  Installed filter;
  filter.is_kept_port = true;
  pstn_xdp_port key{};
  const int error = In(*vi.interface, [&] {
    const int failed = KeepSourcePort(request.addr, filter.socket, key);
    if (failed != 0) return failed;
    filter.keys.ports.push_back(key);
    return Install(vi, filter.keys, request.b);
  });
  if (error != 0) return error;
  answer.a = ntohs(key.port);
  answer.d = vi.next_filter++;
  vi.kept_ports++;
  vi.filters[answer.d] = std::move(filter);
  return 0;
}

size_t Vis::FiltersOf(uid_t uid) const {
  size_t count = 0;
  for (const auto& [id, vi] : vis_) count += vi->uid == uid ? vi->filters.size() : 0;
  return count;
}

int Vis::AddFilter(uint64_t id, const ctl::Msg& request, UniqueFd socket, ctl::Msg& answer) {
  One& vi = *vis_[id];
  if (vi.filters.size() >= kFiltersMax) return -ENOSPC;
  if (request.b == (ctl::kFilterOutgoing | ctl::kFilterFragments))
    return KeepPort(vi, request, answer);
  if (!socket.ok() || (request.b & ~kFlags) != 0) return -EINVAL;
  if (!DoneInTime(vi.uid, [] {})) return -EBUSY;
  Interface& interface = *vi.interface;
  Installed filter;
  const int error = In(interface, [&] {
    int failed = CheckFilter(socket.get(), vi.uid, interface.key.first, interface.key.second,
                             request, interface.addresses, filter.keys);
    if (failed == 0) failed = Install(vi, filter.keys, request.b);
    return failed;
  });
  if (error != 0) return error;
  answer.d = vi.next_filter++;
  filter.flags = request.b;
  filter.socket = std::move(socket);
  vi.filters[answer.d] = std::move(filter);
  Watch(id, answer.d);
  return 0;
}

// Of TCP, a port's. It may have left its state since it was checked: the set says so at once.
void Vis::Watch(uint64_t vi, uint32_t number) {
  Installed& filter = vis_[vi]->filters[number];
  const std::vector<pstn_xdp_port>& ports = filter.keys.ports;
  if (ports.empty() || ports.front().protocol != IPPROTO_TCP) return;
  filter.watch =
      listeners_.Add(filter.socket.get(), [this, vi, number] { ListenerLeft(vi, number); });
}

void Vis::ListenerLeft(uint64_t vi, uint32_t number) {
  One& one = *vis_[vi];
  Installed& filter = one.filters[number];
  if (StillListens(filter.socket.get(), one.uid, filter.keys)) return;  // again
  filter.watch.reset();
  (void)In(*one.interface, [&] {
    LeaveSyns(one, filter);
    return 0;
  });
}

// Its listener is closed. A program that listens there now, if it may share the port, gets the new
// connections; and all, if it is another VI's, which has taken the filter's place.
void Vis::LeaveSyns(One& vi, Installed& filter) {
  filter.is_hushed = true;
  const pstn_xdp_target target = {vi.slot, filter.flags | PSTN_XDP_ENDED, filter.keys.uid};
  const auto listens = [&vi](const std::string& key) {
    return std::any_of(vi.filters.begin(), vi.filters.end(), [&key](const auto& other) {
      const std::vector<pstn_xdp_port>& ports = other.second.keys.ports;
      return !other.second.is_hushed &&
             std::any_of(ports.begin(), ports.end(),
                         [&key](const pstn_xdp_port& port) { return Bytes(port) == key; });
    });
  };
  Steering& steering = *vi.interface->steering;
  for (const pstn_xdp_port& port : filter.keys.ports) {
    if (!listens(Bytes(port)) && steering.SlotOf(port) == static_cast<int>(vi.slot))
      (void)steering.AddPort(port, target);
  }
}

// The same, by its own word. posternd keeps the port for its connections.
int Vis::Hush(One& vi, Installed& filter) {
  filter.watch.reset();
  const int error = In(*vi.interface, [&] {
    LeaveSyns(vi, filter);
    return 0;
  });
  if (error != 0 || !filter.socket.ok()) return error;
  const SharedFd copy = Share(UniqueFd(fcntl(filter.socket.get(), F_DUPFD_CLOEXEC, 0), kTcpSocket));
  const auto shut = AnswerInTime(vi.uid, [copy] {
    return shutdown(copy->get(), SHUT_RD) == 0 || errno == ENOTCONN ? 0 : -errno;
  });
  return shut.value_or(-EBUSY);
}

// The kernel's listener goes on in other processes, and must be closed when they close it. The next
// owner of the port has what the kernel has of it, as they have.
int Vis::Leave(One& vi, Installed& filter) {
  filter.watch.reset();
  filter.socket = UniqueFd();
  return Hush(vi, filter);
}

int Vis::Filter(const ViAsker& asker, const ctl::Msg& request, UniqueFd socket, ctl::Msg& answer) {
  const auto it = vis_.find(request.cookie);
  if (it == vis_.end() || !Same(it->second->stack, asker.stack)) return -ENOENT;
  One& vi = *it->second;
  if (request.a == ctl::kFilterAdd && FiltersOf(vi.uid) >= asker.filters_max) return -ENOSPC;
  if (request.a == ctl::kFilterAdd) return AddFilter(it->first, request, std::move(socket), answer);
  const auto filter = vi.filters.find(request.d);
  if (filter == vi.filters.end()) return -ENOENT;
  if (request.a == ctl::kFilterHush) return Hush(vi, filter->second);
  if (request.a == ctl::kFilterLeave) return Leave(vi, filter->second);
  if (request.a != ctl::kFilterRemove) return -EINVAL;
  (void)In(*vi.interface, [&] {
    Remove(vi, filter->second.keys);
    return 0;
  });
  if (filter->second.is_kept_port) vi.kept_ports--;
  vi.filters.erase(filter);
  return 0;
}

}  // namespace postern::daemon
