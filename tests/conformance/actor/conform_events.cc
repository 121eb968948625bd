// conform_events.cc - commands that ask for readiness: poll, select, epoll.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "conform.h"
#include "ring_calls.h"

namespace conform {
namespace {

const std::pair<const char*, unsigned> kEvents[] = {
    {"IN", EPOLLIN},           {"PRI", EPOLLPRI},
    {"OUT", EPOLLOUT},         {"ERR", EPOLLERR},
    {"HUP", EPOLLHUP},         {"RDHUP", EPOLLRDHUP},
    {"NVAL", POLLNVAL},        {"ET", EPOLLET},
    {"ONESHOT", EPOLLONESHOT}, {"EXCLUSIVE", EPOLLEXCLUSIVE},
    {"RDNORM", EPOLLRDNORM},   {"RDBAND", EPOLLRDBAND},
    {"WRNORM", EPOLLWRNORM},   {"WRBAND", EPOLLWRBAND},
    {"WAKEUP", EPOLLWAKEUP}};

std::mutex tags_mutex;
std::map<std::string, uint64_t> tags;  // data.u64 of a member, by name; guarded by tags_mutex

// Names by comma, or by + where a comma would end an axis of the case.
unsigned ParseEvents(std::string text) {
  std::replace(text.begin(), text.end(), '+', ',');
  std::istringstream in(text);
  unsigned events = 0;
  for (std::string word; std::getline(in, word, ',');) {
    for (const auto& [name, bit] : kEvents) events |= word == name ? bit : 0;
  }
  return events;
}

std::string EventText(unsigned events) {
  std::string out;
  for (const auto& [name, bit] : kEvents) {
    if ((events & bit) != 0) out += (out.empty() ? "" : ",") + std::string(name);
  }
  return out.empty() ? "-" : out;
}

std::pair<std::string, std::string> Split(const std::string& text) {
  const size_t colon = text.rfind(':');
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string Poll(const Args& a) {
  std::vector<pollfd> fds;
  for (size_t i = 1; i < a.size(); ++i)
    fds.push_back({Fd(Split(a[i]).first), static_cast<short>(ParseEvents(Split(a[i]).second)), 0});
  const int n = by::Poll(fds.data(), fds.size(), static_cast<int>(Number(a[0])));
  if (n < 0) return Errno();
  std::string out = std::to_string(n);
  for (const auto& one : fds) out += " " + EventText(static_cast<unsigned short>(one.revents));
  return out;
}

std::string Ppoll(const Args& a) {
  pollfd one{Fd(Split(a[1]).first), static_cast<short>(ParseEvents(Split(a[1]).second)), 0};
  const timespec timeout{Number(a[0]) / 1000, (Number(a[0]) % 1000) * 1000000};
  const int n = ppoll(&one, 1, &timeout, nullptr);
  return n < 0 ? Errno()
               : std::to_string(n) + " " + EventText(static_cast<unsigned short>(one.revents));
}

std::string SelectBy(const Args& a, bool with_pselect) {
  fd_set sets[3];
  for (auto& set : sets) FD_ZERO(&set);
  int highest = 0;
  for (size_t i = 1; i < a.size(); ++i) {
    const auto [name, what] = Split(a[i]);
    if (Fd(name) < 0) return "no descriptor " + name;  // a set has no place for it
    highest = std::max(highest, Fd(name));
    for (size_t s = 0; s < 3; ++s) {
      if (what.find("rwe"[s]) != std::string::npos) FD_SET(Fd(name), &sets[s]);
    }
  }
  timeval timeout{Number(a[0]) / 1000, (Number(a[0]) % 1000) * 1000};
  const timespec fine{timeout.tv_sec, timeout.tv_usec * 1000};
  const int n = with_pselect ? pselect(highest + 1, &sets[0], &sets[1], &sets[2], &fine, nullptr)
                             : select(highest + 1, &sets[0], &sets[1], &sets[2], &timeout);
  if (n < 0) return Errno();
  std::string out = std::to_string(n);
  for (size_t i = 1; i < a.size(); ++i) {
    out += " ";
    for (size_t s = 0; s < 3; ++s)
      out += FD_ISSET(Fd(Split(a[i]).first), &sets[s]) ? std::string(1, "rwe"[s]) : "-";
  }
  return out;
}

std::string Select(const Args& a) { return SelectBy(a, false); }
std::string Pselect(const Args& a) { return SelectBy(a, true); }

std::string EpollCreate(const Args& a) { return Made(a[0], epoll_create1(EPOLL_CLOEXEC)); }

std::string EpollControl(const Args& a, int operation) {
  epoll_event event{};
  event.events = a.size() > 2 ? ParseEvents(a[2]) : 0;
  {
    const std::lock_guard lock(tags_mutex);
    event.data.u64 = tags.emplace(a[1], tags.size() + 0x100000001u).first->second;
  }
  return Outcome(by::EpollCtl(Fd(a[0]), operation, Fd(a[1]), &event));
}

std::string EpollAdd(const Args& a) { return EpollControl(a, EPOLL_CTL_ADD); }
std::string EpollMod(const Args& a) { return EpollControl(a, EPOLL_CTL_MOD); }
std::string EpollDel(const Args& a) { return EpollControl(a, EPOLL_CTL_DEL); }

// Members are printed by name and sorted: the order of ready ones is not compared.
std::string Members(const epoll_event* events, int n) {
  if (n < 0) return Errno();
  std::vector<std::string> lines;
  const std::lock_guard lock(tags_mutex);
  for (int i = 0; i < n; ++i) {
    std::string name = "unknown";
    for (const auto& [tag_name, tag] : tags) {
      if (tag == events[i].data.u64) name = tag_name;
    }
    lines.push_back(name + "=" + EventText(events[i].events));
  }
  std::sort(lines.begin(), lines.end());
  std::string out = std::to_string(n);
  for (const auto& line : lines) out += " " + line;
  return out;
}

constexpr int kMembersMax = 16;

std::string EpollWait(const Args& a) {
  epoll_event events[kMembersMax];
  const int room = a.size() > 2 ? static_cast<int>(Number(a[2])) : kMembersMax;
  const int n = by::EpollWait(Fd(a[0]), events, room, static_cast<int>(Number(a[1])));
  return Members(events, n);
}

// `empty`, or the one signal that is blocked; `keep`: no mask is given.
const sigset_t* Mask(const std::string& text, sigset_t* set) {
  sigemptyset(set);
  if (text == "USR1") sigaddset(set, SIGUSR1);
  return text == "keep" ? nullptr : set;
}

std::string EpollWaitMasked(const Args& a) {
  epoll_event events[kMembersMax];
  sigset_t set;
  const int n =
      epoll_pwait(Fd(a[0]), events, kMembersMax, static_cast<int>(Number(a[1])), Mask(a[2], &set));
  return Members(events, n);
}

// `epwait2 E NANOSECONDS|none|bad [MASK [ROOM]]`
std::string EpollWait2(const Args& a) {
  epoll_event events[kMembersMax];
  sigset_t set;
  const long ns = a[1] == "bad" ? 2000000000 : Number(a[1]);
  const timespec timeout{a[1] == "bad" ? 0 : ns / 1000000000, a[1] == "bad" ? ns : ns % 1000000000};
  const int room = a.size() > 3 ? static_cast<int>(Number(a[3])) : kMembersMax;
  const int n = epoll_pwait2(Fd(a[0]), events, room, a[1] == "none" ? nullptr : &timeout,
                             Mask(a.size() > 2 ? a[2] : "keep", &set));
  return Members(events, n);
}

// Calls of this family that no program means: bad memory, sizes, flags, operations, timeouts.
std::string BadEvents(const Args& a) {
  auto* nowhere = static_cast<epoll_event*>(Nowhere());
  epoll_event event{};
  pollfd one{Fd(a[1]), POLLIN, 0};
  fd_set set;
  FD_ZERO(&set);
  const timespec fine{0, 2000000000};
  timeval coarse{-1, 0};
  const std::string& what = a[0];
  if (what == "create") return Outcome(epoll_create(0));
  if (what == "create1") return Outcome(epoll_create1(0x7));
  if (what == "operation") return Outcome(epoll_ctl(Fd(a[1]), 77, Fd(a[2]), &event));
  if (what == "add") return Outcome(epoll_ctl(Fd(a[1]), EPOLL_CTL_ADD, Fd(a[2]), nowhere));
  if (what == "mod") return Outcome(epoll_ctl(Fd(a[1]), EPOLL_CTL_MOD, Fd(a[2]), nowhere));
  if (what == "del") return Outcome(epoll_ctl(Fd(a[1]), EPOLL_CTL_DEL, Fd(a[2]), nullptr));
  if (what == "wait") return Outcome(epoll_wait(Fd(a[1]), nowhere, 4, 0));
  if (what == "poll") return Outcome(poll(static_cast<pollfd*>(Nowhere()), 1, 0));
  if (what == "pollmany") return Outcome(poll(&one, static_cast<nfds_t>(Number("0x40000000")), 0));
  if (what == "ppoll") return Outcome(ppoll(&one, 1, &fine, nullptr));
  if (what == "select") return Outcome(select(-1, &set, nullptr, nullptr, &coarse));
  if (what == "selecttime") return Outcome(select(1, &set, nullptr, nullptr, &coarse));
  if (what == "pselect") return Outcome(pselect(1, &set, nullptr, nullptr, &fine, nullptr));
  if (what == "selectmemory")
    return Outcome(
        select(Fd(a[1]) + 1, static_cast<fd_set*>(Nowhere()), nullptr, nullptr, nullptr));
  return "SCRIPT ERROR";
}

std::string PpollMasked(const Args& a) {
  sigset_t set;
  pollfd one{Fd(Split(a[2]).first), static_cast<short>(ParseEvents(Split(a[2]).second)), 0};
  const timespec timeout{Number(a[0]) / 1000, (Number(a[0]) % 1000) * 1000000};
  const int n = ppoll(&one, 1, &timeout, Mask(a[1], &set));
  return n < 0 ? Errno()
               : std::to_string(n) + " " + EventText(static_cast<unsigned short>(one.revents));
}

std::string PselectMasked(const Args& a) {
  sigset_t set;
  fd_set reads;
  FD_ZERO(&reads);
  FD_SET(Fd(a[2]), &reads);
  const timespec timeout{Number(a[0]) / 1000, (Number(a[0]) % 1000) * 1000000};
  return Outcome(pselect(Fd(a[2]) + 1, &reads, nullptr, nullptr, &timeout, Mask(a[1], &set)));
}

// select writes the time that is left; whether it is less than was given, and what is left in the
// sets at an error.
std::string SelectLeft(const Args& a) {
  fd_set reads;
  FD_ZERO(&reads);
  FD_SET(Fd(a[1]), &reads);
  timeval timeout{Number(a[0]) / 1000, (Number(a[0]) % 1000) * 1000};
  const timeval before = timeout;
  const int n = select(Fd(a[1]) + 1, &reads, nullptr, nullptr, &timeout);
  const bool less = timercmp(&timeout, &before, <);
  return Outcome(n) +
         (timeout.tv_sec == 0 && timeout.tv_usec == 0 ? " nothing left"
          : less                                      ? " less left"
                                                      : " all left") +
         (FD_ISSET(Fd(a[1]), &reads) ? " set" : " clear");
}

}  // namespace

void SetTag(const std::string& name, uint64_t tag) {
  const std::lock_guard lock(tags_mutex);
  tags[name] = tag;
}

std::map<std::string, uint64_t> AllTags() {
  const std::lock_guard lock(tags_mutex);
  return tags;
}

void ForgetTags() {
  const std::lock_guard lock(tags_mutex);
  tags.clear();
}

const Entry kEventCommands[] = {{"poll", 1, Poll},
                                {"ppoll", 2, Ppoll},
                                {"select", 1, Select},
                                {"pselect", 1, Pselect},
                                {"epcreate", 1, EpollCreate},
                                {"epadd", 3, EpollAdd},
                                {"epmod", 3, EpollMod},
                                {"epdel", 2, EpollDel},
                                {"epwait", 2, EpollWait},
                                {"epwaitm", 3, EpollWaitMasked},
                                {"epwait2", 2, EpollWait2},
                                {"ppollm", 3, PpollMasked},
                                {"pselectm", 3, PselectMasked},
                                {"selectleft", 2, SelectLeft},
                                {"badevents", 2, BadEvents},
                                {nullptr, 0, nullptr}};

}  // namespace conform
