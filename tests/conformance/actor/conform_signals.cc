// conform_signals.cc - commands for signals: handlers, masks, timers, and which processes get SIGIO
// and SIGURG.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>

#include "conform.h"

namespace conform {
namespace {

struct Signal {
  const char* name;
  int number;
};
const Signal kSignals[] = {{"PIPE", SIGPIPE}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2},
                           {"ALRM", SIGALRM}, {"IO", SIGIO},     {"URG", SIGURG},
                           {"RT1", 35}};
constexpr int kSignalsMax = 65;
volatile sig_atomic_t seen[kSignalsMax];
volatile sig_atomic_t seen_fd[kSignalsMax],
    seen_code[kSignalsMax];  // of siginfo, where there is one

int ToSignal(const std::string& name) {
  for (const auto& [text, number] : kSignals) {
    if (name == text) return number;
  }
  return static_cast<int>(Number(name));
}

void Handler(int signal, siginfo_t* info, void*) {
  seen[signal] = seen[signal] + 1;
  seen_fd[signal] = info->si_fd;
  seen_code[signal] = info->si_code;
}

void Catch(int signal, int flags) {
  struct sigaction action {};
  action.sa_sigaction = Handler;
  action.sa_flags = flags | SA_SIGINFO;
  sigaction(signal, &action, nullptr);
}

std::string Sigpipes(const Args&) {
  const int count = seen[SIGPIPE];
  seen[SIGPIPE] = 0;
  return std::to_string(count);
}

std::string SigpipeAction(const Args& args) {
  signal(SIGPIPE, args[0] == "default" ? SIG_DFL : SIG_IGN);
  return "ok";
}

// `sigaction SIG handler|restart|ignore|default`
std::string SetAction(const Args& a) {
  const int signal = ToSignal(a[0]);
  if (a[1] == "handler" || a[1] == "restart")
    Catch(signal, a[1] == "restart" ? SA_RESTART : 0);
  else
    ::signal(signal, a[1] == "ignore" ? SIG_IGN : SIG_DFL);
  return "ok";
}

sigset_t SetOf(const std::string& text) {
  sigset_t set;
  sigemptyset(&set);
  if (text != "empty") sigaddset(&set, ToSignal(text));
  return set;
}

std::string SetMask(const Args& a) {
  const sigset_t set = SetOf(a[1]);
  return Outcome(-pthread_sigmask(a[0] == "block" ? SIG_BLOCK : SIG_UNBLOCK, &set, nullptr));
}

std::string Raise(const Args& a) { return Outcome(pthread_kill(pthread_self(), ToSignal(a[0]))); }

// The signals that have come, with their numbers up to 1 (`signals`) or in full (`signals count`).
std::string Signals(const Args& a) {
  std::string out;
  for (const auto& [name, number] : kSignals) {
    if (seen[number] == 0) continue;
    out += (out.empty() ? "" : " ") + std::string(name);
    if (!a.empty()) out += "=" + std::to_string(seen[number]);
    seen[number] = 0;
  }
  return out.empty() ? "none" : out;
}

std::string Pending(const Args&) {
  sigset_t set;
  sigpending(&set);
  std::string out;
  for (const auto& [name, number] : kSignals)
    out += sigismember(&set, number) == 1 ? std::string(out.empty() ? "" : " ") + name : "";
  return out.empty() ? "none" : out;
}

// `sigwait SIG MS`: whether it comes within that time; its siginfo, if it tells of a descriptor.
std::string WaitSignal(const Args& a) {
  const int signal = ToSignal(a[0]);
  for (long i = 0; i < Number(a[1]) && seen[signal] == 0; ++i) usleep(1000);
  if (seen[signal] == 0) return "no";
  std::string out = "yes";
  if (signal == 35) {
    const int code = seen_code[signal];
    out += code == POLL_IN    ? " in"
           : code == POLL_OUT ? " out"
           : code == POLL_HUP ? " hup"
                              : " other";
    for (const auto& [name, fd] : AllFds()) {
      if (fd == seen_fd[signal]) out += " " + name;
    }
  }
  seen[signal] = 0;
  return out;
}

// `ticking MS CMD ...`: SIGALRM each MS while the command runs, so that it meets one however late
// it begins.
std::string Ticking(const Args& a) {
  const long usec = Number(a[0]) * 1000;
  const itimerval on{{0, usec}, {0, usec}}, off{};
  setitimer(ITIMER_REAL, &on, nullptr);
  std::string result = Run(Tail(a, 1));
  setitimer(ITIMER_REAL, &off, nullptr);
  seen[SIGALRM] = 0;
  return result;
}

pid_t Owner(const std::string& text) {
  return text == "self"    ? getpid()
         : text == "group" ? -getpgrp()
                           : static_cast<pid_t>(Number(text));
}

std::string SetOwner(const Args& a) { return Outcome(fcntl(Fd(a[0]), F_SETOWN, Owner(a[1]))); }

std::string SetOwnerIoctl(const Args& a) {
  int owner = Owner(a[1]);
  return Outcome(ioctl(Fd(a[0]), FIOSETOWN, &owner));
}

std::string SetOwnerEx(const Args& a) {
  f_owner_ex owner{F_OWNER_TID, gettid()};
  return Outcome(fcntl(Fd(a[0]), F_SETOWN_EX, &owner));
}

std::string GetOwner(const Args& a) {
  const int owner = fcntl(Fd(a[0]), F_GETOWN);
  int by_ioctl = 0;
  if (ioctl(Fd(a[0]), FIOGETOWN, &by_ioctl) != 0) return Errno();
  return std::string(owner == getpid()     ? "self"
                     : owner == -getpgrp() ? "group"
                     : owner == 0          ? "none"
                                           : Outcome(owner)) +
         (owner == by_ioctl ? "" : ", not the ioctl's");
}

std::string SetSignal(const Args& a) { return Outcome(fcntl(Fd(a[0]), F_SETSIG, ToSignal(a[1]))); }
std::string GetSignal(const Args& a) { return Outcome(fcntl(Fd(a[0]), F_GETSIG)); }

std::string FioAsync(const Args& a) {
  int on = static_cast<int>(Number(a[1]));
  return Outcome(ioctl(Fd(a[0]), FIOASYNC, &on));
}

}  // namespace

void CatchSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
  for (const auto& [name, number] : kSignals)
    Catch(number, 0);  // no SA_RESTART: calls end with EINTR
  std::fill(std::begin(seen), std::end(seen), 0);
}

const Entry kSignalCommands[] = {
    {"sigpipes", 0, Sigpipes}, {"sigpipe", 1, SigpipeAction}, {"sigaction", 2, SetAction},
    {"sigmask", 2, SetMask},   {"raise", 1, Raise},           {"signals", 0, Signals},
    {"pending", 0, Pending},   {"sigwait", 2, WaitSignal},    {"ticking", 2, Ticking},
    {"setown", 2, SetOwner},   {"setowntid", 1, SetOwnerEx},  {"fiosetown", 2, SetOwnerIoctl},
    {"getown", 1, GetOwner},   {"setsig", 2, SetSignal},      {"getsig", 1, GetSignal},
    {"fioasync", 2, FioAsync}, {nullptr, 0, nullptr}};

}  // namespace conform
