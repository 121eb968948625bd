// SPDX-License-Identifier: Apache-2.0
// descriptors.h - frame of the tests that a call holds its descriptor until it returns: blocked
// calls, a peer that does as it is told, and a transcript.
//
// A case prints what each call has returned. The same case over the kernel alone prints what it
// has to be: t_descriptors.py compares the two. What POSIX or this test's own bookkeeping makes
// certain is checked here as well (Expect).
#pragma once
#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace descriptors {

struct Case {
  const char* name;
  void (*run)();
};
// Each list ends with a null name, and is in a namespace with what its cases consist of.
namespace recv_cases {
extern const Case kAll[];
}
namespace send_cases {
extern const Case kAll[];
}
namespace accept_cases {
extern const Case kAll[];
}
namespace wait_cases {
extern const Case kAll[];
}
namespace epoll_cases {
extern const Case kAll[];
}
namespace jump_cases {
extern const Case kAll[];
}
namespace handler_cases {
extern const Case kAll[];
}
namespace process_cases {
extern const Case kAll[];
}

// ---- the transcript
[[gnu::format(printf, 1, 2)]] void Say(const char* format, ...);
// Prints `what` and counts a failure if it is not so.
void Expect(const char* what, bool so);
[[noreturn]] void Die(const char* what);
// "5" or the name of the error.
std::string Outcome(long result, int error);
std::string Outcome(long result);  // of a call that has just returned: errno is looked at after it

// ---- blocked calls
long NowMs();
void NapMs(long ms);
const char* Self();  // path of this program, for exec
pid_t Tid();
// Returns when the thread sleeps in the kernel and stays there.
void AwaitAsleep(pid_t tid);

// A call in a thread of its own.
class Blocked {
 public:
  explicit Blocked(std::function<long()> call);
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  ~Blocked();
  // Returns when the thread sleeps in its call. `what` is for the transcript, if it does not.
  void AwaitAsleep(const char* what);
  // Waits for the end of the call and prints what it has returned. A call that does not end within
  // 15 s ends the program.
  long Join(const char* what);
  void JoinQuietly();
  // True if it was cancelled.
  bool JoinCancelled(const char* what);
  void Signal(int signo) { pthread_kill(thread_, signo); }
  void Cancel() { pthread_cancel(thread_); }
  bool done() const { return done_; }
  int error() const { return error_; }

 private:
  static void* Main(void* self);
  void JoinThread(const char* what, void** result);
  std::function<long()> call_;
  std::atomic<pid_t> tid_{0};
  std::atomic<bool> done_{false};
  bool joined_ = false;
  long result_ = -1;
  int error_ = 0;
  pthread_t thread_;
};

// ---- the peer (descriptors_peer.cc): another process, which does one thing at a time. `path`: a
// Unix socket that it listens on; null: a child of this process.
void StartPeer(const char* path);
int PeerMain(const char* path);
// Its answer to PeerGet.
struct Got {
  uint64_t bytes = 0, hash = 0;
  std::string text;  // the first of them
  char state = '?';  // 'w': as many as were wanted; 'e': then the end; 'r': a reset; 'n': no more
};
uint16_t PeerPort();               // its listener
uint16_t PeerListen(int backlog);  // another one, which PeerAcceptThere is for
int PeerAccept();                  // a handle
int PeerAcceptThere();             // from the listener of the last PeerListen
int PeerDial(uint16_t port);       // a handle, or -errno
void PeerSend(int peer, const char* text);
Got PeerGet(int peer, uint64_t want, int patience_ms);
void PeerShut(int peer);
void PeerClose(int peer);
void PeerReset(int peer);
// PeerGet with the outcome in the transcript.
void SayGot(const char* what, int peer, int patience_ms = 5000);
// The peer has nothing to read, now and a little later.
void ExpectQuiet(const char* what, int peer);

// A connection of this process to the peer.
struct Conn {
  int fd = -1;
  int peer = -1;
};
Conn Connected();
int Socket();
int Dial(uint16_t port);  // a connected descriptor; dies if it can't be
int Listen(uint16_t* port, int backlog);
void ExpectFree(int number);
// The descriptor gets this number. (The lowest that is free is not always what a new one has:
// docs/deviations.md.)
int MoveTo(int fd, int number);
// Fresh, and with exactly this number, which has to be free.
Conn ConnectedAs(int number);
std::string Text(int fd);  // what a recv() that must not block has: "abc", "end", "EAGAIN"

// Bytes whose values are known by their position.
std::string Pattern(size_t bytes, unsigned seed);
uint64_t Hash(const void* bytes, size_t count, uint64_t hash = 0xcbf29ce484222325u);

// ---- handlers
void Install(int signo, void (*handler)(int), int flags);

}  // namespace descriptors
