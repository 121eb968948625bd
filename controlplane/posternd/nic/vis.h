// vis.h - the VIs that this posternd has granted, and what is steered to them.
// SPDX-License-Identifier: Apache-2.0
//
//   Interface (network namespace, ifindex): XdpProgram, TapProgram or SoftNic, addresses
//     `-- VI: its stack, its slot in the program's maps, its line
//          `-- Filter: the kernel's socket that justifies it, its keys in the maps
//
// posternd keeps nothing that the packets need: sockets and program belong to the processes that
// use the VI (ctl/vi_grant.h). A VI ends when the last copy of its line is closed; then its filters
// go, and with the last VI of an interface the program. Filters that an earlier posternd has left
// count until their owners have had time to come back with the sockets that justify them.
// CheckFilter() bounds what an attacker could gain by a VI: packets that the kernel would have
// given to a socket of the attacker's. A listener that has left its state loses its SYNs, as if its
// program had said so (ListenerLeft).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../kit/event.h"
#include "../kit/uuid.h"
#include "../routes/addresses.h"
#include "../steer/tap_program.h"
#include "../steer/xdp_program.h"
#include "../steer/xsk_open.h"
#include "ctl/proto.h"
#include "filter_check.h"
#include "netns_worker.h"
#include "soft_nic.h"
#include "state_watch.h"

namespace postern::daemon {

// The client that a VI or a filter is for. The broker fills in what it refuses besides `--vi`.
struct ViAsker {
  pstn_uuid stack{};
  uid_t uid = 0;
  uint32_t filters_max = UINT32_MAX;                   // of the user's, all together
  std::function<bool(const std::string&)> may_have{};  // an interface's name; none: any
};

class Vis {
 public:
  // interfaces: names separated by commas, "any", or "off"; "tap:NAME" for one that gets TAPs beside
  // it, "soft:NAME" for one that postern-softnic has made. To be made while posternd still has the
  // capabilities that it takes.
  Vis(event_base* base, const std::string& interfaces);
  ~Vis();
  Vis(const Vis&) = delete;
  Vis& operator=(const Vis&) = delete;

  bool enabled() const { return !interfaces_allowed_.empty(); }

  // kVi of a process of that stack in that network namespace (a descriptor). `line`: what the
  // answer carries. 0 or -errno; EPERM: not on this interface, ENODEV, EBUSY, and what
  // OpenSockets() and XdpProgram::Attach() say.
  int Open(const ViAsker& asker, const UniqueFd& netns, const ctl::Msg& request, UniqueFd area,
           UniqueFd& line);
  // kVi of a stack that has a VI of an earlier posternd, whose first descriptor this is. EEXIST:
  // the stack has come for it already, and it is `id`.
  int Adopt(const ViAsker& asker, const UniqueFd& netns, const ctl::Msg& request, UniqueFd token,
            UniqueFd& line, uint64_t& id);
  // A while after one has ended, and once more: its queues are free, so another stack may have
  // them.
  std::function<void()> on_free;
  // kFilter, and what the answer says besides its status.
  int Filter(const ViAsker& asker, const ctl::Msg& request, UniqueFd socket, ctl::Msg& answer);

 private:
  using Key = std::pair<uint64_t, uint32_t>;  // network namespace's inode, ifindex
  struct Interface {
    Key key;
    UniqueFd netns;
    std::string name;
    std::unique_ptr<Steering> steering;
    XdpProgram* xdp = nullptr;  // it is either this
    TapProgram* tap = nullptr;  // or this
    SoftNic* soft = nullptr;    // or this
    std::vector<pstn_addr> addresses;
    UniqueFd netlink;
    std::unique_ptr<Event> changed, grace, driver;
    uint32_t users = 0;
  };
  struct Installed {
    UniqueFd socket;
    FilterKeys keys;
    uint32_t flags = 0;
    bool is_kept_port = false;
    bool is_hushed = false;
    std::unique_ptr<StateWatch::Hold> watch;  // after `socket`: goes before it
  };
  struct One {
    pstn_uuid stack{};
    uid_t uid = 0;
    Interface* interface = nullptr;
    uint32_t slot = 0;
    UniqueFd line;
    std::unique_ptr<Event> ended;
    std::map<uint32_t, Installed> filters;
    std::map<std::string, uint32_t> uses;  // of a key's bytes: listeners may share a port
    uint32_t next_filter = 1;
    uint32_t kept_ports = 0;
  };

  bool IsListed(const std::string& word) const;
  bool IsAllowed(const ViAsker& asker, const std::string& name) const;
  // Runs it in the interface's network namespace, with all capabilities.
  template <typename Work>
  int In(const Interface& interface, const Work& work) {
    return worker_.Run(interface.netns.get(), work);
  }
  int FindInterface(const ViAsker& asker, const UniqueFd& netns, uint32_t ifindex,
                    Interface*& found);
  int MakeInterface(const ViAsker& asker, const UniqueFd& netns, const Key& key, Interface*& made);
  size_t FiltersOf(uid_t uid) const;
  int Attach(Interface& interface);
  void WatchAddresses(Interface& interface);
  void WatchDriver(Interface& interface);
  void DriverGone(Interface& interface);
  static std::vector<pstn_addr> Reachable(std::vector<pstn_addr> all);
  void AddressesChanged(Interface& interface);
  void SweepInherited(Interface& interface);
  void DropIfUnused(Interface& interface);
  std::map<uint64_t, std::unique_ptr<One>>::const_iterator FindVi(const Interface& interface,
                                                                  uint32_t slot) const;
  bool IsHeld(const Interface& interface) const;
  int OpenXsk(Interface& interface, const ctl::Msg& request, const UniqueFd& area,
              ctl::ViGrant& grant, std::vector<UniqueFd>& fds);
  int OpenTapVi(Interface& interface, ctl::ViGrant& grant, std::vector<UniqueFd>& fds);
  int OpenSoft(Interface& interface, UniqueFd area, ctl::ViGrant& grant,
               std::vector<UniqueFd>& fds);
  int Recognise(Interface& interface, UniqueFd token, std::vector<UniqueFd>& fds);
  // `fds`: what goes with the grant.
  int Grant(const ViAsker& asker, Interface& interface, uint32_t slot, ctl::ViGrant& grant,
            const std::vector<UniqueFd>& fds, UniqueFd& line);
  void Ended(uint64_t id);
  int AddFilter(uint64_t id, const ctl::Msg& request, UniqueFd socket, ctl::Msg& answer);
  int KeepPort(One& vi, const ctl::Msg& request, ctl::Msg& answer);
  void Watch(uint64_t vi, uint32_t number);
  void ListenerLeft(uint64_t vi, uint32_t number);
  static void LeaveSyns(One& vi, Installed& filter);
  int Hush(One& vi, Installed& filter);
  int Leave(One& vi, Installed& filter);
  static int Install(One& vi, FilterKeys& keys, uint32_t flags);
  static void Remove(One& vi, const FilterKeys& keys);

  void TellFree();

  event_base* base_;
  std::vector<std::string> interfaces_allowed_;
  NetnsWorker worker_;
  Event free_soon_, free_;
  std::vector<std::unique_ptr<Interface>> interfaces_;
  StateWatch listeners_;                          // before `vis_`, whose filters are in it
  std::map<uint64_t, std::unique_ptr<One>> vis_;  // by id
  std::unique_ptr<XdpProgram> spare_;             // loaded, and off its interface
};

}  // namespace postern::daemon
