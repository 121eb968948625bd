// SPDX-License-Identifier: Apache-2.0
// descriptors_handler.cc - a handler that makes socket calls itself while its thread is blocked in
// one, on the same connection or another, on the thread's stack or an alternate one.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <initializer_list>

#include "descriptors.h"

namespace descriptors::handler_cases {
namespace {

enum class Act {
  kRecvOther,
  kSendOther,
  kRecvSame,
  kSendSame,
  kCloseOther,
  kCloseSame,
  kDup2Same,
  kCloseThenDial
};
struct Named {
  Act act;
  const char* name;
};
constexpr Named kActs[] = {{Act::kRecvOther, "recv on another"},
                           {Act::kSendOther, "send on another"},
                           {Act::kRecvSame, "recv on the same"},
                           {Act::kSendSame, "send on the same"},
                           {Act::kCloseOther, "close of another"},
                           {Act::kCloseSame, "close of the same"},
                           {Act::kDup2Same, "dup2 over the same"},
                           {Act::kCloseThenDial, "close of the same, then another of its number"}};

Act act;
Conn same, other;
char in_handler[32];
std::atomic<long> result;
std::atomic<int> ran;

long Do() {
  switch (act) {
    case Act::kRecvOther:
      return recv(other.fd, in_handler, sizeof in_handler, 0);
    case Act::kSendOther:
      return send(other.fd, "handler", 7, 0);
    case Act::kRecvSame:
      return recv(same.fd, in_handler, sizeof in_handler, MSG_DONTWAIT);
    case Act::kSendSame:
      return send(same.fd, "handler", 7, 0);
    case Act::kCloseOther:
      return close(other.fd);
    case Act::kCloseSame:
      return close(same.fd);
    case Act::kDup2Same:
      return dup2(other.fd, same.fd) == same.fd ? 0 : -1;
    case Act::kCloseThenDial:
      return close(same.fd) == 0 ? 0 * MoveTo(Dial(PeerPort()), same.fd) : -1;
  }
  return -1;
}

void Handler(int) {
  const int before = errno;
  errno = 0;
  const long r = Do();
  result = r >= 0 ? r : -errno;
  ran++;
  errno = before;
}

enum class Stack { kThreads, kAlternate };

void OneAct(const Named& what, int flags, Stack stack) {
  act = what.act;
  ran = 0;
  same = Connected();
  other = Connected();
  if (act == Act::kRecvOther) {
    PeerSend(other.peer, "news");
    NapMs(20);
  }
  char text[33] = {};
  const int number = same.fd;
  Blocked call([&]() -> long {
    stack_t alternate{};
    if (stack == Stack::kAlternate) {
      alternate.ss_size = 64 << 10;
      alternate.ss_sp = malloc(alternate.ss_size);
      sigaltstack(&alternate, nullptr);
    }
    const long r = recv(number, text, 32, 0);
    const int error = errno;
    if (stack == Stack::kAlternate) {
      void* memory = alternate.ss_sp;
      alternate.ss_flags = SS_DISABLE;
      sigaltstack(&alternate, nullptr);
      free(memory);
    }
    errno = error;
    return r;
  });
  call.AwaitAsleep("recv");
  call.Signal(SIGUSR1);
  for (const long end = NowMs() + 10000; ran == 0; NapMs(1)) {
    if (NowMs() > end) Die("the handler hangs, or does not run");
  }
  Say("%s, in a handler: %s", what.name, Outcome(result, static_cast<int>(-result)).c_str());
  // What was closed by the handler is the call's no more, once that has been restarted or is over.
  const bool gone = act == Act::kCloseSame || act == Act::kDup2Same || act == Act::kCloseThenDial;
  if ((flags & SA_RESTART) != 0 && !gone) {
    call.AwaitAsleep("recv, restarted");
    PeerSend(same.peer, "rest");
  }
  if (act == Act::kCloseThenDial && (flags & SA_RESTART) != 0) PeerSend(PeerAccept(), "the new");
  if (act == Act::kDup2Same && (flags & SA_RESTART) != 0) PeerSend(other.peer, "the other");
  call.Join("recv");
  Say("text: %s", text);
  if (gone) {
    SayGot("the peer", same.peer);
  } else {
    close(same.fd);
    SayGot("the peer", same.peer);
  }
  close(same.fd);
  if (act != Act::kCloseOther) close(other.fd);
  SayGot("the other's peer", other.peer);
}

void AllActs(int flags, Stack stack) {
  Install(SIGUSR1, Handler, flags);
  for (const Named& what : kActs) OneAct(what, flags, stack);
}

void HandlerInterrupts() { AllActs(0, Stack::kThreads); }
void HandlerRestarts() { AllActs(SA_RESTART, Stack::kThreads); }
void HandlerInterruptsOnAltStack() { AllActs(SA_ONSTACK, Stack::kAlternate); }
void HandlerRestartsOnAltStack() { AllActs(SA_RESTART | SA_ONSTACK, Stack::kAlternate); }

// A handler that waits itself, on another connection, while another thread closes what the
// interrupted call was made for.
void HandlerBlocks() {
  for (const int flags : {0, SA_RESTART}) {
    Install(SIGUSR1, Handler, flags);
    act = Act::kRecvOther;
    ran = 0;
    same = Connected();
    other = Connected();
    char text[32];
    Blocked call([&] { return recv(same.fd, text, sizeof text, 0); });
    call.AwaitAsleep("recv");
    call.Signal(SIGUSR1);
    call.AwaitAsleep("recv in the handler");
    Say("close: %s", Outcome(close(same.fd)).c_str());
    Say("close of the other: %s", Outcome(close(other.fd)).c_str());
    ExpectQuiet("the handler's call holds the other", other.peer);
    PeerSend(other.peer, "news");
    call.Join("recv");
    Say("in the handler: %ld", result.load());
    SayGot("the peer", same.peer);
    SayGot("the other's peer", other.peer);
  }
}

}  // namespace

const Case kAll[] = {{"handler_interrupts", HandlerInterrupts},
                     {"handler_restarts", HandlerRestarts},
                     {"handler_interrupts_on_alternate_stack", HandlerInterruptsOnAltStack},
                     {"handler_restarts_on_alternate_stack", HandlerRestartsOnAltStack},
                     {"handler_blocks", HandlerBlocks},
                     {nullptr, nullptr}};

}  // namespace descriptors::handler_cases
