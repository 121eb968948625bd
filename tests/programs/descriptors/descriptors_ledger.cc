// SPDX-License-Identifier: Apache-2.0
// descriptors_ledger.cc - which bytes have been sent, and which have been read, once.
//
// Each aligned 8 bytes of an op are a word: epoch, op, index in it, and a sum over these. A read
// may begin and end anywhere, and go on in the midst of another op where another reader has taken
// what was between: the kernel lets go of a socket's lock within a call. So a read is cut into
// runs, each within one op and without a gap. Bytes of which no run can be made, because they are
// fewer than a word and what stands before it, are orphans. At the end of a lossless epoch the
// bytes that are missing have to be the orphans: as many of each value.
#include <cstdio>
#include <cstring>
#include <string>

#include "descriptors_stress.h"

namespace stress {
namespace {

uint64_t WordOf(uint32_t op, uint32_t index) {
  const uint64_t name = (static_cast<uint64_t>(shared->epoch & 0xffffu) << 16 | op) << 9 | index;
  return name << 23 | (Mix(name) & 0x7fffffu);
}
bool NameOf(uint64_t word, uint32_t& epoch, uint32_t& op, uint32_t& index) {
  const uint64_t name = word >> 23;
  index = static_cast<uint32_t>(name & 511u);
  op = static_cast<uint32_t>(name >> 9 & 0xffffu);
  epoch = static_cast<uint32_t>(name >> 25);
  return (Mix(name) & 0x7fffffu) == (word & 0x7fffffu);
}
char ByteOf(uint32_t op, uint32_t offset) {
  return static_cast<char>(WordOf(op, offset / 8) >> offset % 8 * 8);
}

struct Run {
  uint32_t op, offset, bytes;
};

// A run that begins with data[0]: the word that comes first in it, and what is before that.
bool FindRun(const char* what, int number, const char* data, size_t bytes, Run& run) {
  for (size_t head = 0; head < 8 && head + 8 <= bytes; head++) {
    uint64_t word;
    memcpy(&word, data + head, sizeof word);
    uint32_t epoch, op, index;
    if (!NameOf(word, epoch, op, index) || index * 8 < head) continue;
    const uint32_t offset = index * 8 - static_cast<uint32_t>(head);
    if (epoch != (shared->epoch & 0xffffu)) {
      if (head != 0) continue;
      Bad("%s by %d: bytes of epoch %u in epoch %u: op %u, offset %u", what, number, epoch,
          shared->epoch.load(), op, offset);
    }
    if (op >= shared->ops_begun) Bad("%s by %d: bytes of an op that is none: %u", what, number, op);
    bool same = true;
    for (uint32_t i = 0; i < head && same; i++) same = data[i] == ByteOf(op, offset + i);
    if (!same) continue;
    const uint32_t end = shared->ops[op].bytes;
    uint32_t n = static_cast<uint32_t>(head);
    while (n < bytes && offset + n < end && data[n] == ByteOf(op, offset + n)) n++;
    if (n < head + 8) continue;
    run = {op, offset, n};
    return true;
  }
  return false;
}

void Mark(const char* what, int number, const Run& run) {
  Op& op = shared->ops[run.op];
  for (uint32_t at = run.offset; at < run.offset + run.bytes;) {
    const uint32_t bit = at % 64;
    const uint32_t n =
        run.offset + run.bytes - at < 64 - bit ? run.offset + run.bytes - at : 64 - bit;
    const uint64_t mask = (n == 64 ? ~0ull : (1ull << n) - 1) << bit;
    const uint64_t before = op.read[at / 64].fetch_or(mask);
    if ((before & mask) != 0)
      Bad("%s by %d: read before: op %u, offset %u (of %u sent), %u bytes from %u on", what, number,
          run.op, at + static_cast<uint32_t>(__builtin_ctzll(before & mask)) - bit,
          static_cast<unsigned>(op.sent.load()), run.bytes, run.offset);
    at += n;
  }
}

void Orphans(const char* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    const uint32_t at = shared->orphans++;
    if (at < kOrphans) shared->orphan[at] = static_cast<uint8_t>(data[i]);
  }
}

[[noreturn]] void BadBytes(const char* what, int number, const char* data, size_t bytes,
                           size_t at) {
  char text[100] = {};
  for (size_t i = 0; i < 24 && at + i < bytes; i++)
    snprintf(text + 3 * i, 4, "%02x ", static_cast<unsigned char>(data[at + i]));
  Bad("%s by %d: bytes that nobody has sent, or torn ones: %zu bytes, from %zu on: %s", what,
      number, bytes, at, text);
}

}  // namespace

uint32_t BeginOp(uint32_t bytes, char* to) {
  const uint32_t op = shared->ops_begun++;
  if (op >= kOps) {
    shared->stop = true;
    return kNoOp;
  }
  Op& o = shared->ops[op];
  o.bytes = bytes;
  for (uint32_t i = 0; i < bytes / 8; i++) {
    const uint64_t word = WordOf(op, i);
    memcpy(to + 8 * i, &word, sizeof word);
  }
  return op;
}

void EndOp(uint32_t op, int32_t sent) {
  shared->ops[op].sent = sent;
  shared->bytes_sent += static_cast<uint64_t>(sent);
}

namespace {

void TakeAll(const char* what, int number, const char* data, size_t bytes, bool peeked) {
  constexpr size_t kShort = 15;  // a word that is whole need not be among fewer
  if (!peeked) shared->bytes_read += bytes;
  Run last{}, run{};
  size_t at = 0;
  while (at < bytes) {
    size_t next = at;
    while (next < bytes && !FindRun(what, number, data + next, bytes - next, run)) next++;
    if (next - at >= kShort) BadBytes(what, number, data, bytes, at);
    // Bytes that could be the end of one run or the beginning of the next are neither's.
    uint32_t either = 0;
    while (next < bytes && next == at && either < last.bytes && either < run.offset &&
           data[next - 1 - either] == ByteOf(run.op, run.offset - 1 - either))
      either++;
    last.bytes -= either;
    if (!peeked) {
      Orphans(data + at - either, next - at + either);
      if (last.bytes != 0) Mark(what, number, last);
    }
    last = run;
    at = next < bytes ? next + run.bytes : bytes;
    if (next >= bytes) return;
  }
  if (!peeked && last.bytes != 0) Mark(what, number, last);
}

}  // namespace

void Take(const char* what, int number, const char* data, size_t bytes, bool peeked) {
  const bool first = !peeked && bytes >= 64 && shared->bytes_read > 100000;
  const Wrong wrong = first ? shared->wrong.exchange(Wrong::kNothing) : Wrong::kNothing;
  if (wrong == Wrong::kLost) return;
  if (wrong == Wrong::kChanged) {
    std::string other(data, bytes);
    for (size_t i = 10; i < 40; i++) other[i] = 'x';
    return TakeAll(what, number, other.data(), bytes, peeked);
  }
  if (wrong == Wrong::kTwice) TakeAll(what, number, data, bytes, peeked);
  TakeAll(what, number, data, bytes, peeked);
}

void CheckEpoch() {
  const uint32_t ops = shared->ops_begun < kOps ? shared->ops_begun.load() : kOps;
  int64_t missing[256] = {};
  char first[200] = "";
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < ops; i++) {
    const Op& op = shared->ops[i];
    const int32_t sent = op.sent;
    if (sent < 0)
      Bad("op %u of %u bytes: the call that sends it has not returned", i, op.bytes.load());
    const uint32_t all = op.bytes;
    for (uint32_t at = 0; at < all; at++) {
      const bool read = (op.read[at / 64] >> at % 64 & 1u) != 0;
      if (read && at >= static_cast<uint32_t>(sent))
        Bad("op %u: offset %u has been read, of %d bytes that were sent", i, at, sent);
      if (read || at >= static_cast<uint32_t>(sent)) continue;
      if (bytes++ == 0)
        snprintf(first, sizeof first, "the first: op %u, offset %u of %d that were sent", i, at,
                 sent);
      missing[static_cast<uint8_t>(ByteOf(i, at))]++;
    }
  }
  if (!shared->lossless) return;
  const uint32_t orphans = shared->orphans;
  if (orphans > kOrphans) Bad("too many orphans: %u", orphans);
  for (uint32_t i = 0; i < orphans; i++) missing[shared->orphan[i]]--;
  for (const int64_t n : missing) {
    if (n != 0)
      Bad("epoch %u: %llu bytes of %u ops are missing, %u bytes without a name have been read; %s",
          shared->epoch.load(), static_cast<unsigned long long>(bytes), ops, orphans, first);
  }
}

void ResetEpoch() {
  const uint32_t ops = shared->ops_begun < kOps ? shared->ops_begun.load() : kOps;
  for (uint32_t i = 0; i < ops; i++) {
    shared->ops[i].sent = -1;
    for (auto& bits : shared->ops[i].read) bits = 0;
  }
  shared->ops_begun = 0;
  shared->orphans = 0;
}

}  // namespace stress
