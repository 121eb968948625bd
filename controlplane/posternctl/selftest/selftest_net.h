// selftest_net.h - two network namespaces and the cable between them, by netlink.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "selftest_io.h"

namespace postern::ctl_command::selftest {

Fd CurrentNetns();
// A new one with lo up; the caller's stays as it is.
Fd NewNetns();
void EnterNetns(const Fd& netns);  // this thread
// A veth pair, "eth0" in both, with these addresses of one /24.
void Cable(const Fd& one, const std::string& one_ip, const Fd& two, const std::string& two_ip);

}  // namespace postern::ctl_command::selftest
