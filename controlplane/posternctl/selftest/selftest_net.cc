// selftest_net.cc - see selftest_net.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_net.h"

#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>

#include <cerrno>
#include <memory>

namespace postern::ctl_command::selftest {
namespace {

constexpr const char* kDevice = "eth0";
constexpr uint8_t kPrefixBits = 24;

struct CloseSocket {
  void operator()(mnl_socket* socket) const { mnl_socket_close(socket); }
};

// One request to the kernel, and its answer. In the namespace that this thread is in.
class NetRequest {
 public:
  NetRequest(uint16_t type, int flags) : head_(mnl_nlmsg_put_header(room_)) {
    head_->nlmsg_type = type;
    head_->nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | NLM_F_ACK | flags);
    head_->nlmsg_seq = 1;
  }
  nlmsghdr* head() { return head_; }
  template <typename T>
  T& Extra() {
    return *static_cast<T*>(mnl_nlmsg_put_extra_header(head_, sizeof(T)));
  }
  void Do(const char* what) {
    const std::unique_ptr<mnl_socket, CloseSocket> socket(mnl_socket_open(NETLINK_ROUTE));
    if (socket == nullptr || mnl_socket_bind(socket.get(), 0, MNL_SOCKET_AUTOPID) < 0 ||
        mnl_socket_sendto(socket.get(), head_, head_->nlmsg_len) < 0)
      Fail(what);
    alignas(nlmsghdr) char answer[8192];
    const ssize_t n = mnl_socket_recvfrom(socket.get(), answer, sizeof(answer));
    if (n < 0 || mnl_cb_run(answer, static_cast<size_t>(n), 1, mnl_socket_get_portid(socket.get()),
                            nullptr, nullptr) < 0)
      Fail(what);
  }

 private:
  alignas(nlmsghdr) char room_[1024] = {};
  nlmsghdr* head_;
};

void SetUp(const char* device) {
  NetRequest request(RTM_NEWLINK, 0);
  auto& link = request.Extra<ifinfomsg>();
  link.ifi_index = static_cast<int>(if_nametoindex(device));
  link.ifi_flags = link.ifi_change = IFF_UP;
  request.Do("an interface up");
}

void SetAddress(const std::string& ip) {
  NetRequest request(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
  auto& address = request.Extra<ifaddrmsg>();
  address.ifa_family = AF_INET;
  address.ifa_prefixlen = kPrefixBits;
  address.ifa_index = if_nametoindex(kDevice);
  const sockaddr_in text = Address(ip, 0);
  mnl_attr_put(request.head(), IFA_LOCAL, sizeof(text.sin_addr), &text.sin_addr);
  mnl_attr_put(request.head(), IFA_ADDRESS, sizeof(text.sin_addr), &text.sin_addr);
  request.Do("an address");
}

}  // namespace

Fd CurrentNetns() {
  Fd fd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) Fail("/proc/thread-self/ns/net");
  return fd;
}

void EnterNetns(const Fd& netns) {
  if (setns(netns.get(), CLONE_NEWNET) != 0) Fail("setns");
}

Fd NewNetns() {
  const Fd home = CurrentNetns();
  if (unshare(CLONE_NEWNET) != 0) Fail("a network namespace");
  Fd fresh = CurrentNetns();
  SetUp("lo");
  EnterNetns(home);
  return fresh;
}

void Cable(const Fd& one, const std::string& one_ip, const Fd& two, const std::string& two_ip) {
  const Fd home = CurrentNetns();
  EnterNetns(one);
  NetRequest request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
  (void)request.Extra<ifinfomsg>();
  nlmsghdr* const head = request.head();
  mnl_attr_put_strz(head, IFLA_IFNAME, kDevice);
  nlattr* const info = mnl_attr_nest_start(head, IFLA_LINKINFO);
  mnl_attr_put_strz(head, IFLA_INFO_KIND, "veth");
  nlattr* const data = mnl_attr_nest_start(head, IFLA_INFO_DATA);
  nlattr* const peer = mnl_attr_nest_start(head, VETH_INFO_PEER);
  (void)request.Extra<ifinfomsg>();
  mnl_attr_put_strz(head, IFLA_IFNAME, kDevice);
  mnl_attr_put_u32(head, IFLA_NET_NS_FD, static_cast<uint32_t>(two.get()));
  mnl_attr_nest_end(head, peer);
  mnl_attr_nest_end(head, data);
  mnl_attr_nest_end(head, info);
  request.Do("a veth pair");
  SetAddress(one_ip);
  SetUp(kDevice);
  EnterNetns(two);
  SetAddress(two_ip);
  SetUp(kDevice);
  EnterNetns(home);
}

}  // namespace postern::ctl_command::selftest
