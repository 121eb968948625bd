// SPDX-License-Identifier: Apache-2.0
// plugin_interface.h - the binary interface between packetdrill and a shared object that is tested
// in place of the kernel (packetdrill --so_filename=FILE --so_flags=FLAGS).
//
// The shared object exports packetdrill_interface_init(flags, table) and fills the table in. Each
// entry gets `userdata` first. Results and errno are those of the system call of the same name; the
// two calls below the stack are
//
//   netdev_send     an IP packet for the stack
//   netdev_receive  the next one from it: waits; *bytes is the buffer's size, then the packet's (0:
//                   none came); *sent_us is when it was sent, by the clock of gettimeofday()
//
// The order of the members is the interface.
#pragma once
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

extern "C" {

struct packetdrill_interface {
  void* userdata;
  void (*free)(void* self);
  int (*socket)(void* self, int domain, int type, int protocol);
  int (*bind)(void* self, int fd, const sockaddr* address, socklen_t bytes);
  int (*listen)(void* self, int fd, int backlog);
  int (*accept)(void* self, int fd, sockaddr* address, socklen_t* bytes);
  int (*connect)(void* self, int fd, const sockaddr* address, socklen_t bytes);
  ssize_t (*read)(void* self, int fd, void* data, size_t bytes);
  ssize_t (*readv)(void* self, int fd, const iovec* pieces, int count);
  ssize_t (*recv)(void* self, int fd, void* data, size_t bytes, int flags);
  ssize_t (*recvfrom)(void* self, int fd, void* data, size_t bytes, int flags, sockaddr* from,
                      socklen_t* from_bytes);
  ssize_t (*recvmsg)(void* self, int fd, msghdr* message, int flags);
  ssize_t (*write)(void* self, int fd, const void* data, size_t bytes);
  ssize_t (*writev)(void* self, int fd, const iovec* pieces, int count);
  ssize_t (*send)(void* self, int fd, const void* data, size_t bytes, int flags);
  ssize_t (*sendto)(void* self, int fd, const void* data, size_t bytes, int flags,
                    const sockaddr* to, socklen_t to_bytes);
  ssize_t (*sendmsg)(void* self, int fd, const msghdr* message, int flags);
  int (*fcntl)(void* self, int fd, int command, ...);
  int (*ioctl)(void* self, int fd, unsigned long request, ...);
  int (*close)(void* self, int fd);
  int (*shutdown)(void* self, int fd, int how);
  int (*getsockopt)(void* self, int fd, int level, int name, void* value, socklen_t* bytes);
  int (*setsockopt)(void* self, int fd, int level, int name, const void* value, socklen_t bytes);
  int (*poll)(void* self, pollfd* fds, nfds_t count, int timeout_ms);
  int (*netdev_send)(void* self, const void* packet, size_t bytes);
  int (*netdev_receive)(void* self, void* packet, size_t* bytes, long long* sent_us);
  int (*usleep)(void* self, useconds_t us);
  int (*gettimeofday)(void* self, timeval* now, struct timezone* zone);
  int (*epoll_create)(void* self, int size);
  int (*epoll_ctl)(void* self, int epoll, int operation, int fd, epoll_event* event);
  int (*epoll_wait)(void* self, int epoll, epoll_event* events, int count, int timeout_ms);
  int (*pipe)(void* self, int fds[2]);
  int (*splice)(void* self, int in, loff_t* in_off, int out, loff_t* out_off, size_t bytes,
                unsigned int flags);
};

__attribute__((visibility("default"))) void packetdrill_interface_init(
    const char* flags, packetdrill_interface* table);

}  // extern "C"
