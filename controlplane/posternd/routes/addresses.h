// addresses.h - the local addresses of this network namespace, kept up to date from netlink.
// SPDX-License-Identifier: Apache-2.0
//
// A notification only says that something changed: each one, and each overrun of the socket,
// leads to a complete new dump, so that nothing can be missed or counted twice.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "../kit/event.h"
#include "../kit/netlink.h"
#include "abi/postern_abi.h"

namespace postern::daemon {

std::vector<pstn_addr> LocalAddresses();
// Our address towards `to`, as the kernel's routes have it now. False: there is no way.
bool SourceTowards(const pstn_addr& to, pstn_addr& source);

class AddressWatch {
 public:
  using OnChange = std::function<void(const std::vector<pstn_addr>&)>;
  // Calls on_change at once, and after each change.
  AddressWatch(event_base* base, OnChange on_change);

 private:
  void Drain();

  OnChange on_change_;
  Netlink netlink_;
  std::unique_ptr<Event> readable_;
};

}  // namespace postern::daemon
