// SPDX-License-Identifier: Apache-2.0
// ring_stress.cc - checked streams through rings that are also detached, between threads and
// between processes.
//
//   ring_stress [SECONDS [CONNECTIONS [SEED]]]    default: 3 4 1
//
// Each connection has a writer and a reader. Both spin a little and then sleep on the futex of
// their ctl line, in the order that smcd/notify.h proves: a lost wake-up is a sleep that times out
// with work to do, and fails the test. A further thread takes drained rings away all the time, as
// posternd's pressure does, so that connections write into memory that others polled a moment ago.
// First half: threads, where TSan sees both ends. Second half: the readers are in a forked process.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "../unit/smcd/ring_pair.h"
#include "base/clock.h"
#include "base/lock.h"
#include "smcd/notify.h"

// Both races are of hints, argued at the top of smcd/ring.h: what is read so is checked again,
// under the lock or against ctl.ring, before anything is believed.
//  LookAt: a reader polls the header at its old place after the ring was taken away, while the
//    memory's next user copies payload there. The header is discarded because ctl.ring has changed.
//  RingWritable: reads tx.off and tx.peer without the lock of the thread that writes.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:LookAt\nrace:postern::RingWritable\nrace:postern::RingReadable\n";
}

namespace postern {
namespace {

constexpr uint32_t kConnsMax = 64;
constexpr size_t kLargest = 300000;
constexpr timespec kLostWakeup = {10, 0};

struct Shared {
  uint32_t stop;                     // (a) writers end at the next record
  uint32_t failed;                   // (a)
  uint64_t detached, bytes, sleeps;  // (a)
  uint64_t written[kConnsMax];       // (a) before FIN
};

struct Job {
  ConnEnd end;
  uint64_t seed;
  Shared* shared;
  Bells bells;
};

void Fail(Shared& s, const char* why, uint32_t conn, uint64_t pos) {
  fprintf(stderr, "connection %u, position %llu: %s\n", conn, static_cast<unsigned long long>(pos),
          why);
  StoreRelaxed(s.failed, 1u);
  _exit(1);
}

// Spins, then sleeps; `ready` is looked at between the announcement and the sleep [F1].
template <typename Ready>
void WaitFor(const Job& job, uint32_t& word, uint32_t bit, size_t spins, Ready ready) {
  for (size_t i = 0; i < spins; i++) {
    if (ready()) return;
    CpuRelax();
  }
  for (;;) {
    const uint32_t value = FetchOr(word, bit) | bit;
    FullFence();
    if (ready()) return;
    FetchAdd(job.shared->sleeps, uint64_t{1});
    const long r = sys::FutexWait(&word, value, &kLostWakeup);
    if (r == -ETIMEDOUT && ready())
      Fail(*job.shared,
           bit == PSTN_TXW_FUTEX && &word == &job.end.ctl().tx_wait ? "writer: a wake-up was lost"
                                                                    : "reader: a wake-up was lost",
           job.end.ep->conn_idx, 0);
    if (ready()) return;
  }
}

void Writer(Job job) {
  TestRandom random(job.seed);
  std::vector<uint8_t> data(kLargest);
  uint64_t pos = 0;
  while (LoadRelaxed(job.shared->stop) == 0) {
    const size_t bytes = random.Size(random.Below(64) == 0 ? kLargest : 6000);
    FillStream(data.data(), bytes, job.seed, pos);
    iovec iov = {data.data(), bytes};
    IovCursor from(&iov, 1);
    while (from.left() != 0) {
      Lock(job.end.ep->tx.lock);
      const size_t n = RingWrite(job.end, from, {});
      Unlock(job.end.ep->tx.lock);
      if (n != 0) AnnounceUnlocked(job.bells, job.end);
      if (from.left() == 0) break;
      WaitFor(job, job.end.ctl().tx_wait, PSTN_TXW_FUTEX, random.Below(300),
              [&] { return RingWritable(job.end); });
    }
    pos += bytes;
    if (random.Below(50) == 0)
      usleep(static_cast<useconds_t>(random.Below(300)));  // the reader drains and sleeps
  }
  StoreRelaxed(job.shared->written[job.end.ep->conn_idx], pos);
  FetchOr(job.end.ctl().flags, PSTN_CF_FIN);
  AnnounceData(job.bells, job.end);
  FetchAdd(job.shared->bytes, pos);
}

void Reader(Job job) {
  TestRandom random(job.seed + 1000);
  std::vector<uint8_t> data(kLargest);
  uint64_t pos = 0;
  const auto ended = [&] { return (LoadAcquire(job.end.peer_ctl().flags) & PSTN_CF_FIN) != 0; };
  for (;;) {
    const ReadMode mode = random.Below(16) == 0 ? ReadMode::kPeek : ReadMode::kTake;
    const size_t want = random.Size(kLargest);
    iovec iov = {data.data(), want};
    IovCursor to(&iov, 1);
    const bool last = ended();
    Lock(job.end.ep->rx.lock);
    const ReadResult r = RingRead(job.end, &to, want, mode);
    if (r.bytes != 0 && mode == ReadMode::kTake) ReturnSpace(job.bells, job.end);
    Unlock(job.end.ep->rx.lock);
    if (r.status == ReadStatus::kViolation)
      Fail(*job.shared, "an honest writer was found to lie", job.end.ep->conn_idx, pos);
    const size_t good = CheckStream(data.data(), r.bytes, job.seed, pos);
    if (good != r.bytes) Fail(*job.shared, "wrong byte", job.end.ep->conn_idx, pos + good);
    if (mode == ReadMode::kTake) pos += r.bytes;
    if (r.bytes != 0) continue;
    if (last) break;
    WaitFor(job, job.end.ctl().rx_wait, 1, random.Below(300),
            [&] { return RingReadable(job.end) || ended(); });
  }
  if (pos != LoadRelaxed(job.shared->written[job.end.ep->conn_idx]))
    Fail(*job.shared, "the stream is too short", job.end.ep->conn_idx, pos);
}

// Takes drained rings away, one connection after the other.
void Detacher(const std::vector<Job>* writers, const uint32_t* over) {
  TestRandom random(99);
  Shared& shared = *writers->front().shared;
  while (LoadAcquire(*over) == 0) {
    const ConnEnd& e = (*writers)[random.Below(writers->size())].end;
    if (TryLock(e.ep->tx.lock)) {
      if (RingDetach(e, random.Below(32) == 0 ? Pages::kDrop : Pages::kKeep))
        FetchAdd(shared.detached, uint64_t{1});
      Unlock(e.ep->tx.lock);
    }
    if (random.Below(4) == 0) usleep(20);
  }
}

struct Run {
  RingWorld world;
  std::vector<Job> writers, readers;

  Run(Shared& shared, uint32_t conns, uint64_t seed) {
    for (uint32_t c = 0; c < conns; c++) {
      writers.push_back(
          {world.End(c & 1u, c), seed + c, &shared, {}});  // both sides write, each some
      readers.push_back({world.End(~c & 1u, c), seed + c, &shared, {}});
    }
  }
  void Finish() {
    for (const Job& job : writers) {
      if (!RingDrained(job.end))
        Fail(*job.shared, "not drained at the end", job.end.ep->conn_idx, 0);
      (void)RingDetach(job.end, Pages::kKeep);
    }
    if (world.ref(0).rings != 0 || world.ref(1).rings != 0)
      Fail(*writers.front().shared, "a ring was lost", 0, 0);
  }
};

// The writers, the detacher and, if `with_readers`, the readers as threads of this process.
void RunThreads(Run& run, double seconds, bool with_readers) {
  uint32_t over = 0;
  std::vector<std::thread> threads;
  for (const Job& job : run.writers) threads.emplace_back(Writer, job);
  for (const Job& job : run.readers) {
    if (with_readers) threads.emplace_back(Reader, job);
  }
  std::thread detacher(Detacher, &run.writers, &over);
  usleep(static_cast<useconds_t>(seconds * 1e6));
  StoreRelaxed(run.writers.front().shared->stop, 1u);
  for (std::thread& thread : threads) thread.join();
  StoreRelease(over, 1u);
  detacher.join();
}

void RunReadersHere(Run& run) {
  ForgetTid();
  std::vector<std::thread> threads;
  for (const Job& job : run.readers) threads.emplace_back(Reader, job);
  for (std::thread& thread : threads) thread.join();
}

int Half(const char* what, double seconds, uint32_t conns, uint64_t seed, bool forked) {
  auto& shared = *static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Run run(shared, conns, seed);
  const pid_t child = forked ? fork() : -1;
  if (child == 0) {
    RunReadersHere(run);
    _exit(0);
  }
  RunThreads(run, seconds, !forked);
  int status = 0;
  if (forked && (waitpid(child, &status, 0) != child || status != 0)) return 1;
  run.Finish();
  printf("%s: %u connections, %.1f MB, %llu sleeps, %llu rings taken away\n", what, conns,
         static_cast<double>(shared.bytes) / 1e6, static_cast<unsigned long long>(shared.sleeps),
         static_cast<unsigned long long>(shared.detached));
  fflush(stdout);
  return shared.failed != 0 || shared.bytes == 0 ? 1 : 0;
}

}  // namespace
}  // namespace postern

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  const uint32_t conns = argc > 2 ? static_cast<uint32_t>(atoi(argv[2])) : 4;
  const uint64_t seed = argc > 3 ? strtoull(argv[3], nullptr, 10) : 1;
  if (conns == 0 || conns > postern::kConnsMax) return 2;
  if (postern::Half("threads", seconds / 2, conns, seed, false) != 0) return 1;
  return postern::Half("processes", seconds / 2, conns, seed, true);
}
