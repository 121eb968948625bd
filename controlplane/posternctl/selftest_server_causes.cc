// selftest_server_causes.cc - placeholder for the build.
// SPDX-License-Identifier: Apache-2.0
#include "selftest.h"
namespace postern::ctl_command::selftest {
void AddServers(Causes&) {}
}
