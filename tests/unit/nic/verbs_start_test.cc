// verbs_start_test.cc - which RDMA device an interface is, and what is said when there is none.
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "../../../controlplane/verbsnic/find_device.h"
#include "../../../controlplane/verbsnic/ibv_device.h"
#include "../kit/catch.h"

namespace postern::verbsnic {
namespace {

bool Has(const std::string& text, const char* part) {
  INFO(text);
  const bool has = text.find(part) != std::string::npos;
  CHECK(has);
  return has;
}

class Sysfs {
 public:
  Sysfs() {
    char name[] = "/tmp/postern-sysfs-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    root = name;
    Device("eth0", "mlx5_0", "0");
    Device("eth1", "mlx4_0", "1");
    Device("bond0", "mlx5_0", "0");
    Device("bond0", "mlx5_1", "0");
    std::filesystem::create_directories(root + "/class/net/veth0");
  }
  ~Sysfs() { std::filesystem::remove_all(root); }
  Sysfs(const Sysfs&) = delete;
  Sysfs& operator=(const Sysfs&) = delete;
  std::string root;

 private:
  void Device(const std::string& interface, const std::string& device, const char* port) const {
    const std::string at = root + "/class/net/" + interface;
    std::filesystem::create_directories(at + "/device/infiniband/" + device);
    std::ofstream(at + "/dev_port") << port << "\n";
  }
};

TEST_CASE("verbs: the device of an interface, and its port") {
  const Sysfs sysfs;
  const std::vector<std::string> known = {"mlx4_0", "mlx5_0", "mlx5_1"};
  Found found;
  CHECK(FindDevice(sysfs.root, "eth0", "", known, found).empty());
  CHECK(found.device == "mlx5_0");
  CHECK(found.port == 1);
  CHECK(FindDevice(sysfs.root, "eth1", "", known, found).empty());
  CHECK(found.device == "mlx4_0");
  CHECK(found.port == 2);
  CHECK(FindDevice(sysfs.root, "bond0", "mlx5_1", known, found).empty());
  CHECK(found.device == "mlx5_1");
  CHECK(FindDevice(sysfs.root, "veth0", "mlx5_0", known, found).empty());
  CHECK(found.port == 1);
}

TEST_CASE("verbs: what is missing is named, with what there is") {
  const Sysfs sysfs;
  const std::vector<std::string> known = {"mlx4_0", "mlx5_1"};
  Found found;
  const std::string none = FindDevice(sysfs.root, "veth0", "", {}, found);
  Has(none, "veth0 has no RDMA device");
  Has(none, "mlx5_ib");
  const std::string other = FindDevice(sysfs.root, "veth0", "", known, found);
  Has(other, "veth0 has no RDMA device");
  Has(other, "mlx4_0, mlx5_1");
  Has(FindDevice(sysfs.root, "bond0", "", known, found), "--device: mlx5_0, mlx5_1");
  const std::string wrong = FindDevice(sysfs.root, "eth0", "mlx5_7", known, found);
  Has(wrong, "no RDMA device mlx5_7");
  Has(wrong, "mlx4_0, mlx5_1");
  // The kernel has it, libibverbs has no provider for it.
  Has(FindDevice(sysfs.root, "eth0", "", known, found), "no RDMA device mlx5_0");
  uint8_t mac[6];
  uint32_t mtu = 0;
  Has(ReadInterface("pstn-none", mac, mtu), "no such interface");
  Has(ReadInterface("lo", mac, mtu), "not an Ethernet interface");
}

TEST_CASE("verbs: errors of a device say what to do") {
  Has(OpenErrorText(EACCES), "not root");
  Has(OpenErrorText(ENOENT), "in a container");
  Has(CreateErrorText(EPERM), "CAP_NET_RAW");
  Has(CreateErrorText(EOPNOTSUPP), "rxe and siw");
  Has(CreateErrorText(ENOMEM), "ulimit -l");
  IbvDevice device;
  CHECK_FALSE(device.Open("pstn_none_0", 1));
}

}  // namespace
}  // namespace postern::verbsnic
