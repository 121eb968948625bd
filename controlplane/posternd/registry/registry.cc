// registry.cc - processes and stacks: hello, watching, death.
// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../kit/log.h"
#include "../kit/pid_namespaces.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "slot_copy.h"
#include "stack_words.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kSlotScanMs = 250;
constexpr int kGuestsRest = 20;  // of the time that a look at a guest's slots takes

}  // namespace

std::string UserToBe(const Stack& stack) {
  struct stat st {};
  if (stack.uid == geteuid() || fstat(stack.fd->get(), &st) != 0) return "";
  return std::to_string(st.st_uid) + ":" + std::to_string(st.st_gid);
}

Registry::Registry(event_base* base, Directory& directory, std::function<void()> on_change)
    : base_(base),
      directory_(directory),
      on_change_(std::move(on_change)),
      slot_timer_(base, -1, 0, [this] { SlotTimer(); }),
      link_timer_(base, -1, 0, [this] { LinkTimer(); }),
      reapers_(base) {
  reapers_.SetDirectory(directory.fd());
  reapers_.find = [this](const pstn_uuid& id) -> const Stack* { return Find(id); };
  reapers_.on_failed = [this](const pstn_uuid& id, const std::string& why) {
    ReaperFailed(id, why);
  };
}

// The clients' connections go on without us: nothing is taken apart, only let go.
Registry::~Registry() {
  while (!stacks_.empty()) ReleaseStack(*stacks_.begin()->second);
}

Stack* Registry::Find(const pstn_uuid& id) {
  const auto it = stacks_.find(id);
  return it == stacks_.end() ? nullptr : it->second.get();
}

bool Registry::IsMember(const Process& process) {
  return process.said_hello || HasMapped(process.pid, process.stack->inode) == Mapped::kYes;
}

const Process* Registry::MemberOf(const Stack& stack, pid_t pid) {
  for (const auto& [slot, process] : stack.processes) {
    if (process->pid == pid && !PidfdIsDead(process->pidfd.get()) && IsMember(*process))
      return process.get();
  }
  return nullptr;
}

const Stack* Registry::EndpointOf(pid_t pid, uint32_t fd, uid_t uid, uint32_t& ep,
                                  uint32_t& gen) const {
  if (fd >= PSTN_SLOT_CHUNKS * PSTN_FDCHUNK_FDS) return nullptr;
  for (const auto& [id, stack] : stacks_) {
    if (stack->uid != uid) continue;
    for (const auto& [slot, process] : stack->processes) {
      if (process->pid != pid || !IsMember(*process)) continue;
      const StackLook& s = *stack->s;
      const pstn_slot& place = s.slots.Own(ProcIndex(slot));
      const ChunkIndex part(LoadAcquire(place.chunk[fd / PSTN_FDCHUNK_FDS]));
      const pstn_fdchunk* const chunk = s.fdchunks.At(part);
      if (chunk == nullptr) continue;
      const uint32_t entry = LoadAcquire(chunk->fd[fd % PSTN_FDCHUNK_FDS]);
      ep = entry & PSTN_FD_IDX;
      const pstn_ep* const meant = EpAt(s, ep);
      if ((entry & PSTN_FD_KIND) != PSTN_FD_EP || meant == nullptr) continue;
      gen = LoadRelaxed(meant->gen);
      return stack.get();
    }
  }
  return nullptr;
}

void Registry::StoreHeld(const pstn_uuid& id, uint32_t ep_idx, uint32_t ep_gen, uint32_t held,
                         uint32_t in_talks) {
  Stack* const stack = Find(id);
  const pstn_ep* const ep = stack != nullptr ? EpAt(*stack->s, ep_idx) : nullptr;
  if (ep == nullptr || LoadRelaxed(ep->gen) != ep_gen) return;
  const bool more = held > LoadRelaxed(ep->held);
  PutHeld(*stack, ep_idx, held, in_talks);
  if (!more) return;
  ctl::Msg message;
  message.type = ctl::Type::kHeld;
  message.a = ep_idx;
  message.b = ep_gen;
  PushNote(*stack, message);
}

uint32_t Registry::BacklogOf(const pstn_uuid& id, uint32_t ep_idx, uint32_t ep_gen) {
  Stack* const stack = Find(id);
  const pstn_ep* const ep = stack != nullptr ? EpAt(*stack->s, ep_idx) : nullptr;
  return ep != nullptr && LoadRelaxed(ep->gen) == ep_gen ? LoadRelaxed(ep->backlog) : 0;
}

int Registry::OpenStack(const pstn_uuid& id, UniqueFd memfd, uint32_t slot, Stack*& stack) {
  if (SegmentBytes(memfd.get()) == 0) return -EINVAL;
  const uint64_t inode = InodeOf(memfd.get());
  stack = Find(id);
  // Known by its id: then it has to be the very same memory.
  if (stack != nullptr) {
    if (stack->inode != inode) return -EEXIST;
    return slot < stack->s->slots.count() ? 0 : -EINVAL;
  }
  const StackLook* map = LookAtStack(memfd.get());
  if (map == nullptr) return -EINVAL;
  const pstn_uuid found = map->hdr.id;
  if (!Same(found, id) || slot >= map->slots.count()) {
    UnmapStack(map);
    return -EINVAL;
  }
  auto fresh = std::make_unique<Stack>();
  fresh->id = id;
  struct stat st {};
  if (fstat(memfd.get(), &st) != 0 || (st.st_uid != geteuid() && !HasRoomForGuest(st.st_uid))) {
    UnmapStack(map);
    return -EMFILE;
  }
  fresh->uid = st.st_uid;
  fresh->gid = st.st_gid;
  fresh->fd = Share(std::move(memfd));
  fresh->inode = inode;
  fresh->s = map;
  stack = fresh.get();
  stacks_[id] = std::move(fresh);
  return 0;
}

int Registry::Hello(Client& client, uint32_t slot, const pstn_uuid& id, UniqueFd memfd) {
  if (!memfd.ok()) return -EINVAL;
  const bool is_new = Find(id) == nullptr;
  Stack* stack = nullptr;
  int error = OpenStack(id, std::move(memfd), slot, stack);
  if (error != 0) return error;
  if (stack->broken) return -ECONNRESET;
  const SlotCopy copy = ReadSlot(*stack, slot);
  Process* process = nullptr;
  // The kernel names the process in our PID namespace; the slot names it in its own.
  const bool is_own =
      IsElsewhere(copy) ? IsPidThere(client.pid(), copy.pid) : copy.pid == client.pid();
  error = is_own ? Watch(*stack, slot, copy, client.pid(), process) : -EPERM;
  if (error != 0) {
    if (is_new) {
      ReleaseStack(*stack);
    } else {
      (void)ScanOrDrop(*stack);  // its slot may have been the last one's
    }
    return error;
  }
  if (client.process != nullptr && client.process != process) client.process->client = nullptr;
  if (Client* const before = process->client; before != nullptr && before != &client) {
    before->process = nullptr;
    if (IsGuests(*stack)) before->Break();  // another user's program has one line, not all of ours
  }
  process->client = &client;
  process->said_hello = true;
  client.process = process;
  Inform("stack %s: hello from pid %d (%s), which joins, slot %u", Text(id).c_str(), client.pid(),
         PlainComm(client.pid()).c_str(), slot);
  if (is_new) {
    AttachWaiting(*stack);
    on_change_();
  }
  ScanOrDrop(*stack);
  return client.process != nullptr ? 0 : -ESRCH;
}

int Registry::Watch(Stack& stack, uint32_t slot, const SlotCopy& copy, PidsThere& look,
                    Process*& process) {
  const auto known = stack.processes.find(slot);
  if (known != stack.processes.end() && known->second->there == copy.pid)
    return Watch(stack, slot, copy, known->second->pid, process);
  const pid_t pid = PidHere(copy, copy.start_time, look);
  // The image that an exec makes has not come to map it.
  if (copy.exec_pending == PSTN_EXEC_NONE && !IsOfFamily(stack, pid)) return -ESRCH;
  return Watch(stack, slot, copy, pid, process);
}

int Registry::Watch(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t pid,
                    Process*& process) {
  const auto known = stack.processes.find(slot);
  if (known != stack.processes.end()) {
    const Process& old = *known->second;
    if (old.there == copy.pid && old.pid == pid && !PidfdIsDead(old.pidfd.get())) {
      process = known->second.get();
      return 0;
    }
  }
  if (IsGuests(stack) && (HasOtherSlot(stack, slot, pid) || !HasRoomForGuest(stack.uid)))
    return -EMFILE;
  UniqueFd pidfd = OpenPidfd(pid, copy.start_time);
  const bool lives = pidfd.ok() && !PidfdIsDead(pidfd.get());
  // The slot has passed on to another process. The last one that lives stays watched: its death is
  // what tells that none is left.
  if (known != stack.processes.end() && (lives || PidfdIsDead(known->second->pidfd.get())))
    Forget(stack, slot);
  if (!lives) return -ESRCH;
  auto fresh = std::make_unique<Process>();
  fresh->stack = &stack;
  fresh->slot = slot;
  fresh->pid = pid;
  fresh->there = copy.pid;
  fresh->died =
      std::make_unique<Event>(base_, pidfd.get(), EV_READ,
                              [this, id = stack.id, slot, pid] { ProcessDied(id, slot, pid); });
  fresh->died->Add();
  fresh->pidfd = std::move(pidfd);
  process = fresh.get();
  stack.processes[slot] = std::move(fresh);
  if (on_process) on_process(*process);
  return 0;
}

bool Registry::HasOtherSlot(const Stack& stack, uint32_t slot, pid_t pid) {
  return std::any_of(stack.processes.begin(), stack.processes.end(), [=](const auto& entry) {
    return entry.first != slot && entry.second->pid == pid &&
           !PidfdIsDead(entry.second->pidfd.get());
  });
}

bool Registry::HasRoomForGuest(uid_t uid) const {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  size_t of_user = 0, of_all = 0;
  for (const auto& [id, stack] : stacks_) {
    if (!IsGuests(*stack)) continue;
    const size_t has =
        1 + (stack->queues != nullptr ? 1 : 0) + 2 * stack->processes.size() + stack->links.size();
    of_all += has;
    of_user += stack->uid == uid ? has : 0;
  }
  return of_user < limit.rlim_cur / 4 && of_all < limit.rlim_cur / 2;
}

void Registry::Forget(Stack& stack, uint32_t slot) {
  const auto it = stack.processes.find(slot);
  if (it == stack.processes.end()) return;
  if (it->second->client != nullptr) it->second->client->process = nullptr;
  it->second->died.reset();  // before the descriptor that it watches
  stack.processes.erase(it);
}

void Registry::ClientGone(Client& client) {
  Process* const process = std::exchange(client.process, nullptr);
  if (process == nullptr) return;
  process->client = nullptr;
  // The connection of a process that lives ends when it has exec'd (or lost its descriptors). An
  // image without the library never takes the slot over.
  if (!PidfdIsDead(process->pidfd.get())) ScanOrDrop(*process->stack);
}

void Registry::ProcessDied(const pstn_uuid& stack_id, uint32_t slot, pid_t pid) {
  Stack* stack = Find(stack_id);
  if (stack == nullptr) return;
  Inform("stack %s: pid %d, slot %u, has died", Text(stack_id).c_str(), pid, slot);
  const auto process = stack->processes.find(slot);
  const pid_t there = process != stack->processes.end() ? process->second->there : pid;
  Forget(*stack, slot);
  // An orderly process has given its slot back itself, and another may hold it by now.
  const SlotCopy copy = ReadSlot(*stack, slot);
  if (copy.state == PSTN_SL_LIVE && copy.pid == there) Reap(*stack, slot, there);
  if (!ScanOrDrop(*stack)) WithdrawStaleListeners(*stack);
}

namespace {

// To find a process of another PID namespace is a look at all there are: guests get none by asking.
bool LivesIn(const Stack& stack, uint32_t slot, const SlotCopy& copy, uint64_t start_time) {
  const auto known = stack.processes.find(slot);
  if (IsGuests(stack) && known != stack.processes.end() && known->second->there == copy.pid)
    return !PidfdIsDead(known->second->pidfd.get());
  if (IsGuests(stack) && IsElsewhere(copy)) return true;
  return IsAlive(PidHere(copy, start_time), start_time);
}

}  // namespace

void Registry::ChildEnded(Stack& stack, uint32_t slot, pid_t pid, std::function<void(int)> done) {
  if (slot >= stack.s->slots.count()) return done(-EINVAL);
  const SlotCopy copy = ReadSlot(stack, slot);
  const bool is_reaped = stack.reaping.count(slot) != 0;  // then this waits for the end of it
  if ((!Held(copy) && !is_reaped) || copy.pid != pid) return done(-ENOENT);
  const uint64_t start_time = copy.state == PSTN_SL_LIVE ? copy.start_time : 0;
  if (!is_reaped && LivesIn(stack, slot, copy, start_time)) return done(-EBUSY);
  Forget(stack, slot);
  stack.suspects.erase(slot);
  Reap(stack, slot, pid, std::move(done));
}

void Registry::Withdrawn() { slot_timer_.AddMs(0); }

bool Registry::ScanOrDrop(Stack& stack) {
  const auto begin = Clock::now();
  if (IsGuests(stack) && begin < stack.scan_after) {
    if (!stack.broken && IsDeserted(stack)) {
      EndStack(stack);
      return false;
    }
    if (!slot_timer_.pending()) slot_timer_.AddMs(kSlotScanMs);
    return false;
  }
  if (stack.broken) return ScanBroken(stack);
  const auto waited = IsGuests(stack) ? WaitedForCpu() : Clock::duration();
  const bool look_again = ScanSlots(stack);
  if (IsGuests(stack)) {
    const auto end = Clock::now();
    // What other programs had the CPU for is not the look's: on a busy machine that is most of it,
    // and twenty times as much would be seconds in which no death is noticed.
    const auto took = (end - begin) - (WaitedForCpu() - waited);
    stack.scan_after =
        end + std::max<Clock::duration>(std::chrono::milliseconds(kSlotScanMs), kGuestsRest * took);
  }
  if (look_again && !slot_timer_.pending()) slot_timer_.AddMs(kSlotScanMs);
  if (look_again || !stack.processes.empty() || !stack.reaping.empty()) return false;
  EndStack(stack);
  return false;
}

// Its living processes are still watched, so that it is known when the last of them has ended.
// Whatever the slots say, it is those that have the memory.
bool Registry::ScanBroken(Stack& stack) {
  std::vector<SlotCopy> slots;
  if (!IsGuests(stack)) slots = ReadSlots(stack);  // of guests, those count that have said hello
  PidsThere look;
  for (uint32_t slot = 0; slot < slots.size(); ++slot) {
    Process* process = nullptr;
    slots[slot].exec_pending = PSTN_EXEC_NONE;
    if (slots[slot].state == PSTN_SL_LIVE) (void)Watch(stack, slot, slots[slot], look, process);
  }
  for (auto it = stack.processes.begin(); it != stack.processes.end();) {
    const Process& process = *(it++)->second;
    if (IsGuests(stack) ? !process.said_hello : !IsMember(process)) Forget(stack, process.slot);
  }
  if (!stack.processes.empty()) return false;
  ReleaseStack(stack);
  on_change_();
  return true;
}

void Registry::SlotTimer() {
  std::vector<pstn_uuid> ids;
  for (const auto& [id, stack] : stacks_) ids.push_back(id);
  for (const pstn_uuid& id : ids) {
    if (Stack* stack = Find(id)) (void)ScanOrDrop(*stack);
  }
}

void Registry::WithdrawStaleListeners(Stack& stack) {
  directory_.WithdrawIf([&](const Listener& l) {
    if (!Same(l.stack, stack.id)) return false;
    const pstn_ep* ep = EpAt(*stack.s, l.ep_idx);
    return ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_LISTEN ||
           LoadRelaxed(ep->gen) != l.ep_gen;
  });
}

void Registry::ReleaseStack(Stack& stack) {
  reapers_.Forget(stack);
  UnmapStack(stack.s);
  stacks_.erase(stack.id);
}

}  // namespace postern::daemon
