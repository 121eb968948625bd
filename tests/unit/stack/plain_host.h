// SPDX-License-Identifier: Apache-2.0
// plain_host.h - a host of the engine for tests: an area, a wire segment, programs in plain memory.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stack/engine.h"
#include "vi/test_vi.h"

namespace postern::test {

// What a program has at its end of a connection.
struct PlainEnd {
  std::string out;        // written, not acknowledged yet
  std::string in;         // delivered, not read yet
  uint64_t released = 0;  // bytes of `out` that are gone: cursors count from the stream's start
  uint32_t room = 1u << 20;
  bool slow =
      false;  // what is delivered takes room until the test takes it; else it is read at once
  bool ended = false, closed = false, aborted = false;
  bool connected = false, fin = false, reset = false, gone = false;
  int error = 0;
  uint32_t conn = PSTN_NONE;
  uint32_t deliveries = 0;  // of segments, or of runs of them
};

class PlainHost final : public stack::Streams, public stack::Paths {
 public:
  explicit PlainHost(uint8_t last_byte_of_ip, uint32_t frames = 4096)
      : memory_(Aligned(Area::BytesFor(frames))),
        state_(static_cast<stack::WireState*>(mmap(nullptr, sizeof(stack::WireState),
                                                   PROT_READ | PROT_WRITE,
                                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    area.Format(memory_.get(), frames);
    const uint64_t entropy[4] = {last_byte_of_ip, 2, 3, 4};
    stack::FormatWire(*state_, {1, last_byte_of_ip}, entropy, 0);
    engine = std::make_unique<stack::Engine>(*state_, area, *this, *this);
    SetIp(ip, IpAddress::V4(10, 0, 0, last_byte_of_ip));
  }
  ~PlainHost() { munmap(state_, sizeof(stack::WireState)); }

  pstn_addr At(uint16_t port) const {
    pstn_addr a = ip;
    a.port = port;
    return a;
  }
  PlainEnd& EndOf(uint32_t owner) { return *ends.at(owner); }
  // A program connects.
  PlainEnd& Connect(const pstn_addr& local, const pstn_addr& peer,
                    const stack::OpenWish& wish = {}) {
    ends.push_back(std::make_unique<PlainEnd>());
    int error = 0;
    const uint32_t owner = static_cast<uint32_t>(ends.size() - 1);
    ends.back()->conn = engine->Connect(local, peer, owner, now, error, wish);
    ends.back()->error = error;
    return *ends.back();
  }
  void Wake(const PlainEnd& e) {
    if (!e.gone) engine->Wake(e.conn);
  }

  // ---- Streams
  tcp::Cursor Begin(stack::Conn& c) override { return {End(c).released, 0, 0}; }
  uint32_t Available(stack::Conn& c, const tcp::Cursor& at, uint32_t limit) override {
    PlainEnd& e = End(c);
    const uint64_t end = e.released + e.out.size();
    const uint64_t n = at.ring <= end ? end - at.ring : 0;
    return n < limit ? static_cast<uint32_t>(n) : limit;
  }
  tcp::Cursor Skip(stack::Conn&, const tcp::Cursor& at, uint32_t bytes) override {
    return {at.ring + bytes, 0, 0};
  }
  bool Copy(stack::Conn& c, tcp::Cursor& at, uint32_t bytes, uint8_t* to,
            wire::Checksummer& sum) override {
    PlainEnd& e = End(c);
    if (at.ring < e.released || at.ring + bytes > e.released + e.out.size()) return false;
    sum.Copy(to, reinterpret_cast<const uint8_t*>(e.out.data()) + (at.ring - e.released), bytes);
    at.ring += bytes;
    return true;
  }
  void Release(stack::Conn& c, uint32_t bytes) override {
    PlainEnd& e = End(c);
    e.out.erase(0, bytes);
    e.released += bytes;
  }
  bool Ended(stack::Conn& c) override { return End(c).ended; }
  uint32_t Room(stack::Conn& c) override {
    if (c.owner == PSTN_NONE) return 65535;
    const PlainEnd& e = End(c);
    if (!e.slow) return e.room;
    return e.in.size() < e.room ? e.room - static_cast<uint32_t>(e.in.size()) : 0;
  }
  uint32_t RoomMax(stack::Conn& c) override {
    return c.owner == PSTN_NONE ? 1u << 20 : End(c).room;
  }
  uint32_t Deliver(stack::Conn& c, const uint8_t* data, uint32_t bytes) override {
    End(c).deliveries++;
    return Append(c, data, bytes);
  }
  uint32_t DeliverRun(stack::Conn& c, const tcp::SegmentIn& run, uint32_t skip,
                      uint32_t bytes) override {
    End(c).deliveries++;
    return tcp::EachPart(run, skip, bytes,
                         [&](const uint8_t* data, uint32_t n) { return Append(c, data, n); });
  }
  void Report(stack::Conn& c, tcp::Event event, int error) override {
    PlainEnd& e = End(c);
    if (event == tcp::Event::kConnected) e.connected = true;
    if (event == tcp::Event::kFin) e.fin = true;
    if (event == tcp::Event::kReset) e.reset = true, e.error = error;
    if (event == tcp::Event::kClosed) e.gone = true;
  }
  uint32_t Look(stack::Conn& c) override {
    const PlainEnd& e = End(c);
    return (e.aborted ? stack::kEndAborted : 0) | (e.closed ? stack::kEndClosed : 0);
  }
  bool Accept(stack::Conn& c, uint32_t idx, const stack::Listener& l) override {
    ends.push_back(std::make_unique<PlainEnd>());
    c.owner = static_cast<uint32_t>(ends.size() - 1);
    ends.back()->conn = idx;
    ends.back()->connected = true;
    accepted[l.owner].push_back(c.owner);
    return true;
  }
  bool MayAccept(const stack::Listener& l) override {
    return accepted[l.owner].size() <= l.backlog;
  }
  bool Listens(const stack::Listener&) override { return true; }
  void Collect(stack::Engine&) override {}
  bool HasNews() override { return false; }

  // ---- Paths: one wire
  bool IsFresh(const stack::Path&) override { return true; }
  stack::PathStatus Find(const pstn_addr&, const pstn_addr&, stack::Path& path, int&) override {
    path.mtu = mtu;
    if (asking) return stack::PathStatus::kWait;
    path.version = 1;
    path.vi = vi_idx;
    memset(path.link.destination, 2, 6);
    memset(path.link.source, 2, 6);
    path.link.vlan = path.link.outer_vlan = wire::kNoVlan;
    path.ttl = 64;
    return stack::PathStatus::kOk;
  }
  stack::PathStatus FindDatagram(pstn_addr& local, const pstn_addr& peer, stack::Path& path,
                                 int& error) override {
    memcpy(local.ip, ip.ip, sizeof local.ip);
    return Find(local, peer, path, error);
  }

  Area area;
  std::unique_ptr<stack::Engine> engine;
  std::vector<std::unique_ptr<PlainEnd>> ends;
  std::map<uint32_t, std::deque<uint32_t>> accepted;
  pstn_addr ip = {};
  uint32_t vi_idx = 0, mtu = 1500;
  bool asking = false;  // no neighbour has answered yet
  uint64_t now = 0;     // the test's
  stack::WireState& state() { return *state_; }

 private:
  struct Free {
    void operator()(void* p) const { free(p); }
  };
  static std::unique_ptr<void, Free> Aligned(size_t bytes) {
    void* p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(p, 0, bytes);
    return std::unique_ptr<void, Free>(p);
  }
  PlainEnd& End(const stack::Conn& c) { return *ends.at(c.owner); }
  uint32_t Append(stack::Conn& c, const uint8_t* data, uint32_t bytes) {
    const uint32_t n = bytes < Room(c) ? bytes : Room(c);
    End(c).in.append(reinterpret_cast<const char*>(data), n);
    return n;
  }

  std::unique_ptr<void, Free> memory_;
  stack::WireState* state_;
};

}  // namespace postern::test
