// SPDX-License-Identifier: Apache-2.0
// vi_fault.cc - see vi_fault.h.
#include "vi/decorator/vi_fault.h"

#include <cstring>

namespace postern {

// SplitMix64: each call is a step of a counter, mixed.
uint64_t FaultVi::Random() {
  seed_ += 0x9e3779b97f4a7c15u;
  uint64_t z = seed_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool FaultVi::Earlier(const Waiting& a, const Waiting& b) {
  return a.due_ns != b.due_ns ? a.due_ns < b.due_ns : a.order < b.order;
}

void FaultVi::Push(const Waiting& w) {
  uint32_t at = waiting_++;
  for (; at != 0 && Earlier(w, heap_[(at - 1) / 2]); at = (at - 1) / 2)
    heap_[at] = heap_[(at - 1) / 2];
  heap_[at] = w;
}

FaultVi::Waiting FaultVi::Pop() {
  const Waiting first = heap_[0], last = heap_[--waiting_];
  uint32_t at = 0;
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= waiting_) break;
    if (child + 1 < waiting_ && Earlier(heap_[child + 1], heap_[child])) child++;
    if (!Earlier(heap_[child], last)) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = last;
  return first;
}

void FaultVi::Corrupt(const ViRx& rx) {
  const uint64_t bit = Random() % (uint64_t{rx.bytes} * 8);
  uint8_t* const byte = area_.At(rx.frame, rx.off + static_cast<uint32_t>(bit / 8));
  if (byte != nullptr) *byte = static_cast<uint8_t>(*byte ^ 1u << bit % 8);
  counts_.corrupted++;
}

// Into the rate's queue, or dropped at its end; the frame is this function's.
void FaultVi::Enter(const ViRx& rx) {
  const uint64_t rate = settings.bits_per_second;
  const uint64_t start = free_ns_ > now_ns_ ? free_ns_ : now_ns_;
  uint64_t end = start;
  if (rate != 0) {
    const uint64_t queued = (start - now_ns_) / 8 * (rate / 1000) / 1'000'000;
    if (queued + rx.bytes > settings.queue_bytes || waiting_ == kWaitingMax) {
      counts_.dropped++;
      return area_.Give(rx.frame);
    }
    end = start + uint64_t{rx.bytes} * 8 * 1'000'000'000 / rate;
    free_ns_ = end;
  }
  if (waiting_ == kWaitingMax) {
    counts_.dropped++;
    return area_.Give(rx.frame);
  }
  uint64_t due = end + settings.delay_ns;
  if (settings.jitter_ns != 0) due += Random() % settings.jitter_ns;
  if (Happens(settings.reorder)) {
    due += settings.reorder_delay_ns;
    counts_.reordered++;
  }
  Push({due, order_++, rx});
}

void FaultVi::Double(const ViRx& rx) {
  uint32_t frame = 0;
  if (area_.Take(&frame, 1) == 0) return;
  ViRx copy = rx;
  copy.frame = frame;
  memcpy(area_.At(frame, rx.off), area_.At(rx.frame, rx.off), rx.bytes);
  area_.SetOwner(frame, kFrameRx, 0);
  counts_.duplicated++;
  Enter(copy);
}

void FaultVi::Suffer(const ViRx& rx) {
  if (Happens(settings.loss)) {
    counts_.lost++;
    return area_.Give(rx.frame);
  }
  if (Happens(settings.corrupt)) Corrupt(rx);
  if (Happens(settings.duplicate)) Double(rx);
  Enter(rx);
}

uint32_t FaultVi::Receive(ViRx* rx, uint32_t max) {
  ViRx come[kViBatchMax];
  for (uint32_t n; (n = inner_.Receive(come, kViBatchMax)) != 0;) {
    for (uint32_t i = 0; i < n; i++) Suffer(come[i]);
  }
  uint32_t got = 0;
  while (got < max && waiting_ != 0 && heap_[0].due_ns <= now_ns_) rx[got++] = Pop().rx;
  counts_.passed += got;
  return got;
}

}  // namespace postern
