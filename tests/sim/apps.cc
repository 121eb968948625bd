// SPDX-License-Identifier: Apache-2.0
// apps.cc - what an end of the simulator reads, checks and writes.
#include <initializer_list>

#include "apps.h"

namespace postern::sim {
namespace {
constexpr size_t kChunk = 65536;
}

void StreamApp::Run(SimHost& host, SimConn& conn) {
  if (connected_ns_ == 0) {
    if (!conn.connected) return;
    connected_ns_ = host.now();
    read_not_before_ns_ = host.now() + s_.read_begin_ns;
    if (s_.read_begin_ns != 0) host.WakeAt(conn, read_not_before_ns_);
  }
  ReadSome(host, conn);
  WriteSome(host, conn);
  const bool wrote_all = written_ == s_.write_total;
  if (read_ == s_.read_total && done_ns_ == 0 && (conn.fin || s_.keeps_open || s_.resets))
    done_ns_ = host.now();
  if (s_.keeps_open) return;
  if (wrote_all && !ended_) {
    host.End(conn);
    ended_ = true;
  }
  const bool read_all = conn.fin && conn.rx.size() == 0;
  if (!closed_ && ended_ && (read_all || (s_.resets && read_ == s_.read_total))) {
    host.Close(conn);
    closed_ = true;
  }
}

void StreamApp::ReadSome(SimHost& host, SimConn& conn) {
  static std::array<uint8_t, kChunk> chunk;
  while (host.now() >= read_not_before_ns_) {
    size_t want = std::min(random_.Size(s_.read_max), kChunk);
    if (s_.resets) want = std::min<uint64_t>(want, s_.read_total - read_);
    const size_t got = host.Read(conn, chunk.data(), want);
    if (got == 0) return;
    const uint64_t seed = s_.seed + (s_.is_second ? 0 : 1);
    const size_t good = s_.unchecked ? got : CheckStream(chunk.data(), got, seed, read_);
    if (good != got && wrong_.empty())
      wrong_ = "byte " + std::to_string(read_ + good) + " of what was read is wrong";
    read_ += got;
    if (s_.read_pause_ns == 0) continue;
    read_not_before_ns_ = host.now() + 1 + random_.Next() % s_.read_pause_ns;
    host.WakeAt(conn, read_not_before_ns_);
  }
}

uint64_t StreamApp::Allowed(const SimConn& conn) const {
  switch (s_.gate) {
    case Gate::kFree:
      return s_.write_total;
    case Gate::kEcho:
      return std::min(read_, s_.write_total);
    case Gate::kRequest:
      return std::min((read_ / s_.answer_bytes + 1) * s_.ask_bytes, s_.write_total);
    case Gate::kAnswer:
      return std::min(read_ / s_.ask_bytes * s_.answer_bytes, s_.write_total);
    case Gate::kAfterFin:
      return conn.fin ? s_.write_total : 0;
  }
  return 0;
}

void StreamApp::WriteSome(SimHost& host, SimConn& conn) {
  static std::array<uint8_t, kChunk> chunk;  // of zeros, until something else is written
  const uint64_t allowed = Allowed(conn);
  while (written_ < allowed && conn.tx.room() != 0 && host.now() >= write_not_before_ns_) {
    const uint64_t left = std::min(allowed - written_, conn.tx.room());
    const size_t size = std::min<uint64_t>({random_.Size(s_.write_max), left, kChunk});
    if (!s_.unchecked) FillStream(chunk.data(), size, s_.seed + (s_.is_second ? 1 : 0), written_);
    const size_t put = host.Write(conn, chunk.data(), size);
    if (put == 0) return;
    written_ += put;
    if (s_.write_pause_ns == 0) continue;
    write_not_before_ns_ = host.now() + 1 + random_.Next() % s_.write_pause_ns;
    host.WakeAt(conn, write_not_before_ns_);
  }
}

std::string StreamApp::Missing(const SimConn& conn) const {
  if (!wrong_.empty()) return wrong_;
  if (s_.may_fail && (conn.error != 0 || !conn.connected)) return "";
  if (conn.error != 0) return "failed with error " + std::to_string(conn.error);
  if (!conn.connected) return "never connected";
  if (read_ != s_.read_total)
    return "read " + std::to_string(read_) + " bytes of " + std::to_string(s_.read_total);
  if (written_ != s_.write_total)
    return "wrote " + std::to_string(written_) + " bytes of " + std::to_string(s_.write_total);
  if (!s_.keeps_open && !s_.resets && !conn.fin) return "the peer's end was not seen";
  return "";
}

}  // namespace postern::sim
