// SPDX-License-Identifier: Apache-2.0
// descriptors_stress.cc - epochs of calls by numbers that others take away; each byte that is read
// names the call that has sent it.
//
//   descriptors_stress [--seconds N] [--seed S] [--threads N] [--modes LIST] [--taken N]
//                     [--numbers N] [--wrong WHAT]
//
// --numbers: how many are everybody's, 12 at most
// --modes: of lossless, lossy, fork, exec, spawn, pass, stranger, epoll (default: all)
// --wrong: changed, lost or twice: a mistake of the program's own, to see that it is noticed
// --taken: goes on until so many numbers have been taken away, instead of for some seconds
// Prints "ok ..." or what was wrong; exit code 1 then. A program that knows nothing of postern.
#include "descriptors_stress.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <thread>
#include <vector>

namespace stress {

Shared* shared;

namespace {

std::atomic<uint32_t> go;  // the epoch that threads may work in
uint64_t seed = 1;

void Nap(long ms) {
  const timespec ts = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&ts, nullptr);
}

void Print(const char* text) {
  if (write(1, text, strlen(text)) < 0) abort();
}

void PrintFile(const char* prefix, const char* path) {
  char text[300];
  const int n = snprintf(text, 200, "    %s: ", prefix);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t r = fd >= 0 ? read(fd, text + n, sizeof text - static_cast<size_t>(n) - 2) : 0;
  if (r <= 0) return;
  text[n + r] = 0;
  if (char* end = strchr(text + n, '\n')) *end = 0;
  strcat(text, "\n");
  Print(text);
}

// The lines of a status file that say which signals wait, are blocked and are caught.
void PrintSignals(const char* path) {
  char text[4096];
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t r = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
  close(fd);
  text[r > 0 ? r : 0] = 0;
  for (char *next, *line = strtok_r(text, "\n", &next); line != nullptr;
       line = strtok_r(nullptr, "\n", &next)) {
    if (strncmp(line, "Sig", 3) != 0 && strncmp(line, "State", 5) != 0) continue;
    Print("    ");
    Print(line);
    Print("\n");
  }
}

void DumpSeats() {
  char text[200], path[64];
  for (const Seat& s : shared->seats) {
    const int tid = s.tid;
    if (tid == 0) continue;
    snprintf(text, sizeof text, "  pid %d, thread %d: %s of %d, %llu acts%s\n", s.pid.load(), tid,
             s.name, s.number.load(), static_cast<unsigned long long>(s.acts.load()),
             s.idle ? ", idle" : "");
    Print(text);
    for (const char* file : {"wchan", "syscall"}) {
      snprintf(path, sizeof path, "/proc/%d/task/%d/%s", s.pid.load(), tid, file);
      PrintFile(file, path);
    }
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", s.pid.load(), tid);
    PrintSignals(path);
  }
}

[[noreturn]] void Hang(const char* what) {
  char text[200];
  snprintf(text, sizeof text, "BAD hang in epoch %u (%s): %s\n", shared->epoch.load(),
           shared->lossless ? "lossless" : "lossy", what);
  Print(text);
  shared->failed = true;
  DumpSeats();
  if (getenv("STRESS_STOP") != nullptr) raise(SIGSTOP);  // for a look with a debugger
  for (const Seat& s : shared->seats) {
    if (s.tid != 0 && s.pid != getpid()) kill(s.pid, SIGKILL);
  }
  _exit(1);
}

bool AllIdle() {
  for (const Seat& s : shared->seats) {
    if (s.tid != 0 && !s.idle) return false;
  }
  return true;
}

// What is blocked in a lossy epoch may be held by calls alone, on both sides.
void WakeAll() {
  for (const Seat& s : shared->seats) {
    const int tid = s.tid;
    if (tid != 0 && !s.idle) syscall(SYS_tgkill, s.pid.load(), tid, SIGUSR1);
  }
}

void EndEpoch() {
  shared->stop = true;
  const long end = NowMs() + kPatienceS * 1000;
  for (;;) {
    bool drained = true;
    if (shared->lossless) {
      ShutKeepers();
      drained = Drain();
    } else {
      WakeAll();
    }
    if (AllIdle() && drained && shared->passed == shared->adopted) break;
    if (NowMs() > end)
      Hang(!AllIdle() ? "a call does not end" : !drained ? "a stream does not end" : "passing");
    Nap(1);
  }
  // Those that had begun with a fresh pair have ended since.
  while (shared->lossless && (ShutKeepers(), !Drain())) {
    if (NowMs() > end) Hang("a stream does not end");
    Nap(1);
  }
  LoseNumbers();
  CheckEpoch();
}

void Work(uint64_t start) {
  Hand h{start, TakeSeat(), true};
  h.seat->idle = true;
  for (uint32_t done = 0;;) {
    while (go == done) Nap(1);
    done = go;
    if (done == UINT32_MAX) break;
    while (!shared->stop) Act(h);
    At(h, "idle", -1);
    shared->running--;
    h.seat->idle = true;
  }
  LeaveSeat(h.seat);
}

void Epoch(uint32_t number, int threads, long ms, Hand& main) {
  const bool both = Has(Mode::kLossless) && Has(Mode::kLossy);
  shared->epoch = number;
  shared->lossless = both ? number % 2 != 0 : Has(Mode::kLossless);
  shared->stop = false;
  ResetEpoch();
  MakeNumbers();
  shared->running = static_cast<uint32_t>(threads);
  for (Seat& s : shared->seats) {
    if (s.tid != 0 && s.pid == getpid() && &s != main.seat) s.idle = false;
  }
  go = number;
  // Somebody has to end what is blocked, or all threads would soon be.
  for (const long end = NowMs() + ms; NowMs() < end && !shared->stop; Nap(1)) {
    if (shared->lossless) {
      for (int i = 0; i < 10; i++) UseKeeper(main);
    } else if (main.OneIn(20)) {
      WakeAll();
    }
  }
  EndEpoch();
}

uint32_t ModesOf(const char* list) {
  static constexpr const char* kNames[] = {"lossless", "lossy", "fork",     "exec",
                                           "spawn",    "pass",  "stranger", "epoll"};
  uint32_t modes = 0;
  for (uint32_t i = 0; i < 8; i++) {
    const char* at = strstr(list, kNames[i]);
    if (at != nullptr) modes |= 1u << i;
  }
  if ((modes & 3u) == 0) modes |= 3u;
  return modes;
}

int RunEpochs(int threads, long seconds, uint64_t taken) {
  Hand main{seed, TakeSeat(), false};
  main.seat->idle = true;  // the one that waits for the others
  StartAdopter(kStrangerLine);
  close(socket(AF_INET, SOCK_STREAM, 0));
  StartAdopter(kFamilyLine);
  std::vector<std::thread> all;
  for (int i = 0; i < threads; i++) all.emplace_back(Work, Mix(seed + static_cast<uint64_t>(i)));
  for (uint32_t busy = 0; busy < static_cast<uint32_t>(threads) + 3; Nap(1)) {
    busy = 0;
    for (const Seat& s : shared->seats) busy += s.tid != 0;
  }
  uint32_t number = 0;
  const long end = NowMs() + seconds * 1000;
  do {
    Epoch(++number, threads, 200 + static_cast<long>(main.Below(600)), main);
  } while (taken != 0 ? shared->taken_away < taken : NowMs() < end);
  go = UINT32_MAX;
  for (auto& one : all) one.join();
  printf("ok %u epochs", number);
  const auto say = [](const char* what, uint64_t count) {
    printf(", %llu %s", static_cast<unsigned long long>(count), what);
  };
  say("numbers taken away", shared->taken_away);
  say("bytes sent", shared->bytes_sent);
  say("read", shared->bytes_read);
  say("pairs", shared->fresh);
  say("of them private", shared->exchanges);
  say("children", shared->children);
  say("passed", shared->passed);
  puts("");
  fflush(stdout);
  _exit(0);
}

void MapShared(bool make) {
  if (make) {
    const int fd = memfd_create("ledger", 0);
    if (ftruncate(fd, sizeof(Shared)) != 0 || dup2(fd, kSharedFd) != kSharedFd) Bad("memfd");
    close(fd);
  }
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, kSharedFd, 0);
  if (at == MAP_FAILED) Bad("mmap: errno %d", errno);
  shared = static_cast<Shared*>(at);
}

}  // namespace

long NowMs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

Seat* TakeSeat() {
  const int tid = static_cast<int>(syscall(SYS_gettid));
  for (Seat& s : shared->seats) {
    int none = 0;
    if (s.pid.compare_exchange_strong(none, getpid())) {
      s.idle = false;
      s.acts = 0;
      s.tid = tid;
      return &s;
    }
  }
  Bad("no seat");
}

void LeaveSeat(Seat* seat) {
  seat->tid = 0;
  seat->pid = 0;
}

void Bad(const char* format, ...) {
  char text[600];
  int n = snprintf(text, sizeof text, "BAD pid %d, seed %llu: ", getpid(),
                   static_cast<unsigned long long>(seed));
  va_list args;
  va_start(args, format);
  n += vsnprintf(text + n, sizeof text - static_cast<size_t>(n) - 2, format, args);
  va_end(args);
  if (n > static_cast<int>(sizeof text) - 2) n = sizeof text - 2;
  text[n] = '\n';
  text[n + 1] = 0;
  Print(text);
  if (getenv("STRESS_STOP") != nullptr) raise(SIGSTOP);  // for a look with a debugger
  _exit(1);
}

void CheckError(const char* what, int number, int error) {
  switch (error) {
    case EBADF:
    case ENOTCONN:
    case EINVAL:
    case EAGAIN:
    case EINTR:
    case EPIPE:
    case ENOTSOCK:
    case EISCONN:
    case EALREADY:
    case EINPROGRESS:
    case ECONNABORTED:
    case ENOENT:
    case EEXIST:
    case ELOOP:
    case EOPNOTSUPP:
    case EDESTADDRREQ:
    case 512:
      return;
    case ECONNRESET:
    case ECONNREFUSED:
    case ETIMEDOUT:
    case EADDRNOTAVAIL:
      // Of connections that may be lost, or of none.
      if (!shared->lossless || strcmp(what, "connect") == 0 || shared->stop) return;
      break;
    case EBUSY:  // dup2(2): another thread's open() or dup() has just got the number
      if (strcmp(what, "dup2") == 0 || strcmp(what, "dup3") == 0) return;
      break;
    default:
      break;
  }
  Bad("%s by %d: errno %d", what, number, error);
}

}  // namespace stress

int main(int argc, char** argv) {
  using namespace stress;
  self = argv[0];
  signal(SIGPIPE, SIG_IGN);
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(SIGUSR1, &wake, nullptr);
  if (argc == 4 && strcmp(argv[1], "carry") == 0) {
    MapShared(false);
    Carry(strtoull(argv[2], nullptr, 10), strtoull(argv[3], nullptr, 10));
    _exit(0);
  }
  long seconds = 10, threads = 6, numbers = kNumbers;
  uint64_t taken = 0;
  const char* wrong = "";
  const char* modes = "lossless,lossy,fork,exec,spawn,pass,stranger,epoll";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--seconds") == 0)
      seconds = atol(argv[i + 1]);
    else if (strcmp(argv[i], "--seed") == 0)
      seed = strtoull(argv[i + 1], nullptr, 10);
    else if (strcmp(argv[i], "--threads") == 0)
      threads = atol(argv[i + 1]);
    else if (strcmp(argv[i], "--wrong") == 0)
      wrong = argv[i + 1];
    else if (strcmp(argv[i], "--numbers") == 0)
      numbers = atol(argv[i + 1]);
    else if (strcmp(argv[i], "--modes") == 0)
      modes = argv[i + 1];
    else if (strcmp(argv[i], "--taken") == 0)
      taken = strtoull(argv[i + 1], nullptr, 10);
    else
      return 2;
  }
  if (argc % 2 == 0 || numbers < 1 || numbers > kNumbers || threads > 64) return 2;
  MapShared(true);
  shared->modes = ModesOf(modes);
  shared->wrong = strcmp(wrong, "changed") == 0 ? Wrong::kChanged
                  : strcmp(wrong, "lost") == 0  ? Wrong::kLost
                  : strcmp(wrong, "twice") == 0 ? Wrong::kTwice
                                                : Wrong::kNothing;
  shared->numbers = static_cast<uint32_t>(numbers);
  for (Op& op : shared->ops) op.sent = -1;
  return RunEpochs(static_cast<int>(threads), seconds, taken);
}
