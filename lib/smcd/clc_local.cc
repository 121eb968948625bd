// SPDX-License-Identifier: Apache-2.0
// clc_local.cc - see clc_local.h.
#include "smcd/clc_local.h"

#include <sys/utsname.h>

#include <cstring>

#include "base/sys.h"

namespace postern {

ClcLocal ClcLocalOf(const pstn_host& host) {
  ClcLocal local;
  uint8_t uuid[16];
  for (size_t i = 0; i < 8; i++) {
    uuid[i] = static_cast<uint8_t>(host.gid.hi >> (56 - 8 * i));
    uuid[8 + i] = static_cast<uint8_t>(host.gid.lo >> (56 - 8 * i));
  }
  local.gid = ClcGidFromUuid(uuid);
  local.ueid_count =
      static_cast<uint8_t>(host.ueid_count < PSTN_HOST_UEIDS ? host.ueid_count : PSTN_HOST_UEIDS);
  for (size_t i = 0; i < local.ueid_count; i++)
    memcpy(local.ueids[i].text, host.ueids[i], sizeof host.ueids[i]);
  memset(local.host_name, ' ', sizeof local.host_name);
  utsname names;
  if (sys::Call(SYS_uname, &names) == 0)
    memcpy(local.host_name, names.nodename, strnlen(names.nodename, sizeof local.host_name));
  return local;
}

}  // namespace postern
