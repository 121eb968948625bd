// SPDX-License-Identifier: Apache-2.0
// named_stack.cc - the stack of a name (-o stack.name=), which programs of one user share that have
// no common parent.
//
// posternd knows which was first: each process offers a new stack, and gets back the one to join,
// its own if no other has that name. Names are those of one network namespace, where ports mean
// the same, and of one pid namespace, where a lock's owner does. Without a posternd there is none
// to be found: the stack is the process's own then.
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "base/sys.h"
#include "control/named_stack.h"
#include "control/posternd.h"
#include "ctl/msg_packet.h"
#include "family/family.h"
#include "state/area.h"

namespace postern {
namespace {

constexpr time_t kAnswerSec = 3;

// On a line of its own: the process's is for one that has said hello, with a stack.
int AskOn(int line, ctl::Msg& m, int own) {
  m.seq = 1;
  ctl::Packet request(m, own);
  long r = -EINTR;
  while (r == -EINTR)
    r = sys::Call(SYS_sendmsg, line, &request.header, static_cast<long>(MSG_NOSIGNAL));
  if (r < 0) return static_cast<int>(r);
  ctl::Msg answer;
  ctl::Packet packet(answer);
  for (r = -EINTR; r == -EINTR;)
    r = sys::Call(SYS_recvmsg, line, &packet.header, static_cast<long>(MSG_CMSG_CLOEXEC));
  if (r < 0) return static_cast<int>(r);
  const int fd = packet.TakeFd(sys::Close);
  if (r == static_cast<long>(sizeof answer) && answer.seq == m.seq && answer.status == 0 &&
      fd >= 0) {
    m = answer;
    return fd;
  }
  if (fd >= 0) sys::Close(fd);
  if (r == static_cast<long>(sizeof answer) && answer.status == EXDEV) return -EXDEV;
  return packet.LostFd() ? -EMFILE : -EPROTO;
}

int AskAlone(Family& fam, uint32_t uid, ctl::Msg& m, int own) {
  const int line = sys::Socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (line < 0) return line;
  const timeval wait = {kAnswerSec, 0};
  for (const long which : {SO_RCVTIMEO, SO_SNDTIMEO})
    (void)sys::Call(SYS_setsockopt, line, static_cast<long>(SOL_SOCKET), which, &wait, sizeof wait);
  const long r = CtlReach(fam, line, uid);
  const int fd = r < 0 ? static_cast<int>(r) : AskOn(line, m, own);
  sys::Close(line);
  return fd;
}

}  // namespace

int FindNamedStack(Family& fam, int own, uint64_t netns_ino) {
  StackMap* s = MapStack(own);
  if (s == nullptr) return -ENOMEM;
  memcpy(s->hdr.options, &fam.opt, sizeof fam.opt);  // the name is there
  const uint32_t uid = s->hdr.uid;
  UnmapStack(s);
  ctl::Msg m;
  m.type = ctl::Type::kNamed;
  const int fd = AskAlone(fam, uid, m, own);
  return fd == -EXDEV && GoToNamespace(fam, netns_ino) ? AskAlone(fam, uid, m, own) : fd;
}

int FindGuestStack(Family& fam, int own, uint64_t* ticket) {
  ctl::Msg m;
  m.type = ctl::Type::kGuest;
  m.uuid = Stack(fam).hdr.id;
  const int fd = AskAlone(fam, Stack(fam).hdr.uid, m, own);
  *ticket = m.cookie;
  return fd;
}

}  // namespace postern
