// find_device.h - which RDMA device an interface of the kernel is, and what is to be known of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace postern::verbsnic {

struct Found {
  std::string device;  // mlx5_0
  uint8_t port = 1;
};

// Of the interface: what the kernel says (`sysfs`: /sys), or `wanted` if that is given. `known`:
// the devices of libibverbs. An error's text with what to do, or empty.
std::string FindDevice(const std::string& sysfs, const std::string& interface,
                       const std::string& wanted, const std::vector<std::string>& known,
                       Found& found);

// Address and MTU of an interface, in the network namespace that we are in. An error's text, or
// empty.
std::string ReadInterface(const std::string& interface, uint8_t (&mac)[6], uint32_t& mtu);

}  // namespace postern::verbsnic
