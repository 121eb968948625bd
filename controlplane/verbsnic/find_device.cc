// find_device.cc - see find_device.h.
// SPDX-License-Identifier: Apache-2.0
#include "find_device.h"

#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "../posternd/kit/fd.h"

namespace postern::verbsnic {
namespace {

std::string Join(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// What sysfs lists there, if anything.
std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

uint8_t PortOf(const std::string& sysfs, const std::string& interface) {
  std::ifstream file(sysfs + "/class/net/" + interface + "/dev_port");
  unsigned number = 0;
  return file >> number && number < 255 ? static_cast<uint8_t>(number + 1) : uint8_t{1};
}

}  // namespace

std::string FindDevice(const std::string& sysfs, const std::string& interface,
                       const std::string& wanted, const std::vector<std::string>& known,
                       Found& found) {
  const std::string there = known.empty() ? "libibverbs finds none at all (are ib_uverbs and the "
                                            "card's RDMA module, such as mlx5_ib, loaded? is "
                                            "ibverbs-providers installed?)"
                                          : "there are: " + Join(known);
  std::string name = wanted;
  if (name.empty()) {
    const auto of = NamesIn(sysfs + "/class/net/" + interface + "/device/infiniband");
    if (of.empty()) return interface + " has no RDMA device; " + there + "; --device names one";
    if (of.size() > 1)
      return interface + " has several RDMA devices: name one by --device: " + Join(of);
    name = of[0];
  }
  if (std::find(known.begin(), known.end(), name) == known.end())
    return "there is no RDMA device " + name + "; " + there;
  found = {name, PortOf(sysfs, interface)};
  return {};
}

std::string ReadInterface(const std::string& interface, uint8_t (&mac)[6], uint32_t& mtu) {
  const daemon::UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  memcpy(request.ifr_name, interface.data(),
         std::min(interface.size(), sizeof(request.ifr_name) - 1));
  if (!fd.ok() || ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0)
    return errno == ENODEV ? interface + ": no such interface in this network namespace (ip link)"
                           : interface + ": " + strerror(errno);
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER)
    return interface + " is not an Ethernet interface: VIs are over Ethernet only";
  memcpy(mac, request.ifr_hwaddr.sa_data, sizeof(mac));
  if (ioctl(fd.get(), SIOCGIFMTU, &request) != 0) return interface + ": " + strerror(errno);
  mtu = static_cast<uint32_t>(request.ifr_mtu);
  return {};
}

}  // namespace postern::verbsnic
