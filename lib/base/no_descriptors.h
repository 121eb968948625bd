// SPDX-License-Identifier: Apache-2.0
// no_descriptors.h - Unix sockets that strangers can send to, by which bytes alone are to come.
//
// A message can bring descriptors. The process that reads it, or closes the socket with the message
// in it, is the one that closes them if it does not take them, and the last close of a TCP socket
// sleeps for as long as its sender has chosen (SO_LINGER). Since Linux 6.16 the kernel refuses such
// a message to its sender.
#pragma once
#include "base/sys.h"

namespace postern {

constexpr long kPassRights = 83;  // SO_PASSRIGHTS

inline bool SetPassRights(int unix_socket, int value) {
  return sys::Call(SYS_setsockopt, unix_socket, static_cast<long>(SOL_SOCKET), kPassRights, &value,
                   static_cast<long>(sizeof value)) == 0;
}
// False: this kernel can't.
inline bool RefuseDescriptors(int unix_socket) { return SetPassRights(unix_socket, 0); }
inline bool RefusesDescriptors(int unix_socket) {
  int value = 1;
  socklen_t len = sizeof value;
  return sys::Call(SYS_getsockopt, unix_socket, static_cast<long>(SOL_SOCKET), kPassRights, &value,
                   &len) == 0 &&
         value == 0;
}
// When it is known who is at the other end.
inline void AllowDescriptors(int unix_socket) { (void)SetPassRights(unix_socket, 1); }

}  // namespace postern
