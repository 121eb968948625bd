// verbs_loop_test.cc - the driver's whole loop over an RDMA card: a program's VI in shared memory,
// posternd's messages, the kernel's share, and a card that fails.
// SPDX-License-Identifier: Apache-2.0
//
//   program: SoftVi == rings in a memfd == Nic over VerbsPort -- FakeCard -- the test: a peer
//
// All in one thread: the loop runs, and whenever it looks at the card the test's next step is done.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../../../controlplane/softnic/nic.h"
#include "../../../controlplane/verbsnic/verbs_port.h"
#include "../kit/catch.h"
#include "fake_card.h"
#include "state/area.h"
#include "verbs_frames.h"
#include "vi/soft/soft.h"

namespace postern::verbsnic {
namespace {

using daemon::UniqueFd;
using softnic::Msg;
using softnic::Type;

constexpr uint32_t kFrames = 64;
constexpr uint8_t kSyn = 2, kAck = 16;

// From 10.0.0.1 to 10.0.0.2.
Bytes Segment(uint16_t from, uint16_t to, uint8_t flags = kSyn) {
  return Ether(Ipv4(6, 1, 2, Tcp(from, to, flags)));
}
// That 10.0.0.2's packet from that port has not arrived.
Bytes Error(uint16_t from, uint16_t to) {
  Bytes icmp = {3, 4, 0, 0, 0, 0, 0, 0};
  Put(icmp, Ipv4(6, 2, 1, Tcp(from, to, kAck)));
  return Ether(Ipv4(1, 9, 2, icmp));
}

class FakeKernel final : public softnic::KernelSide {
 public:
  FakeKernel() { REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) == 0); }
  ~FakeKernel() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  FakeKernel(const FakeKernel&) = delete;
  FakeKernel& operator=(const FakeKernel&) = delete;
  void Copy(const Bytes& frame) const {
    REQUIRE(send(ends_[1], frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
  }

  int fd() const override { return ends_[0]; }
  bool was_there() const override { return false; }
  bool has_copies() const override { return true; }
  void SetCarrier(bool) const override {}
  uint32_t Read(uint8_t* frame, uint32_t max) const override {
    const ssize_t got = recv(ends_[0], frame, max, MSG_DONTWAIT);
    return got > 0 ? static_cast<uint32_t>(got) : 0;
  }
  bool Write(const uint8_t* frame, uint32_t bytes, bool) const override {
    written.emplace_back(frame, frame + bytes);
    return true;
  }
  mutable std::vector<Bytes> written;

 private:
  int ends_[2] = {-1, -1};
};

class SteppedCard final : public FakeCard {
 public:
  int PollReceived(int max, ibv_wc* out) override {
    if (on_look) on_look();
    return FakeCard::PollReceived(max, out);
  }
  std::function<void()> on_look;
};

class LoopWorld {
 public:
  LoopWorld() {
    REQUIRE(port.Open(kMac, 1500));
    REQUIRE(flows.Open() == 0);
    const std::string name = "vt" + std::to_string(getpid());
    REQUIRE(nic.Listen(name) == 0);
    line = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    const socklen_t size = softnic::SocketName(name, address);
    REQUIRE(connect(line.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    area_fd = UniqueFd(CreateArea(NewUuid(), kFrames));
    const int rings = CreateSoftRings();
    REQUIRE(area.Map(area_fd.get()) == 0);
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    bell = UniqueFd(ends[0]);
    drivers_bell = UniqueFd(ends[1]);
    pstn_vi& shared = *area.ViAt(0);
    shared.queue_count = 1;
    shared.fill_slots = shared.rx_slots = shared.tx_slots = shared.completion_slots = kSoftSlots;
    shared.state = kViUp;
    REQUIRE(vi.Attach(area, 0, rings, bell.get()) == 0);
    uint32_t frames[kFrames / 2];
    const uint32_t count = area.Take(frames, kFrames / 2);
    REQUIRE(vi.Refill(frames, count) == kFrames / 2);
  }
  ~LoopWorld() {
    vi.Detach();
    area.Unmap();
  }
  LoopWorld(const LoopWorld&) = delete;
  LoopWorld& operator=(const LoopWorld&) = delete;

  // Steps are done until they are true, one after the other.
  void Step(std::function<bool()> step) { steps.push_back(std::move(step)); }
  // A message of posternd's, and its answer.
  void Ask(const Msg& message, const std::function<void(const Msg&)>& check,
           std::vector<int> fds = {}) {
    Step([this, message, fds] {
      Msg m = message;
      softnic::Packet packet(m);
      packet.PutFds(fds.data(), static_cast<uint32_t>(fds.size()));
      REQUIRE(sendmsg(line.get(), &packet.header, 0) == sizeof(m));
      return true;
    });
    Step([this, check] {
      Msg m;
      if (recv(line.get(), &m, sizeof(m), MSG_DONTWAIT) != sizeof(m)) return false;
      check(m);
      return true;
    });
  }
  void OpenVi() {
    Msg open;
    open.type = Type::kOpen;
    Ask(open,
        [this](const Msg& m) {
          CHECK(m.status == 0);
          slot = m.slot;
        },
        {area_fd.get(), vi.rings_fd(), drivers_bell.get()});
  }
  void AddPort(uint16_t number, int status = 0, uint32_t flags = 0) {
    Step([this, number, flags] {
      Msg m;
      m.type = Type::kAddPort;
      m.slot = slot;
      m.flags = flags;
      m.port = {Ip(2), htons(number), 0, 6, {}};
      return send(line.get(), &m, sizeof(m), 0) == sizeof(m);
    });
    Step([this, status] {
      Msg m;
      if (recv(line.get(), &m, sizeof(m), MSG_DONTWAIT) != sizeof(m)) return false;
      CHECK(m.status == status);
      return true;
    });
  }
  // The next packet that the program gets.
  void Expect(const Bytes& frame) {
    Step([this, frame] {
      ViRx rx;
      if (vi.Receive(&rx, 1) == 0) return false;
      const uint8_t* const at = area.At(rx.frame, rx.off);
      CHECK(Bytes(at, at + rx.bytes) == frame);
      area.Give(rx.frame);
      return true;
    });
  }
  void Send(const Bytes& frame) {
    uint32_t number = 0;
    REQUIRE(area.Take(&number, 1) == 1);
    memcpy(area.At(number, 0), frame.data(), frame.size());
    const ViTx tx = {number, 0, static_cast<uint16_t>(frame.size()), 0, 0};
    REQUIRE(vi.Send(&tx, 1) == 1);
    (void)vi.Kick();
  }
  // What Run() has said.
  bool Run() {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    bool in_time = true;
    card.on_look = [&] {
      if (next < steps.size() && steps[next]()) next++;
      in_time = std::chrono::steady_clock::now() < late;
      if (next == steps.size() || !in_time) ended = true;
    };
    const bool whole = nic.Run(ended);
    card.on_look = nullptr;
    CHECK(in_time);
    return whole;
  }

  SteppedCard card;
  VerbsPort port{card};
  FakeKernel kernel;
  softnic::KernelFlows flows;
  softnic::Nic nic{port, kernel, flows, {1'000'000, 500}, 7};
  UniqueFd line, area_fd, bell, drivers_bell;
  Area area;
  SoftVi vi;
  uint32_t slot = 0;
  std::vector<std::function<bool()>> steps;
  size_t next = 0;
  std::atomic<bool> ended = false;
};

TEST_CASE("verbs loop: a program's packets both ways; the rest is the card's, or goes back") {
  LoopWorld w;
  Msg hello;
  hello.type = Type::kHello;
  w.Ask(hello, [](const Msg& m) {
    CHECK(m.mtu == 1500);
    CHECK(m.caps == 0);  // whole checksums: a wire
  });
  w.OpenVi();
  w.AddPort(80);
  w.Step([&w] {
    CHECK_FALSE(w.card.Arrive(Segment(4000, 81)));
    CHECK_FALSE(w.card.Arrive(Ether(Ipv4(1, 1, 2, {8, 0, 0, 0}))));  // an echo
    CHECK(w.card.Arrive(Segment(4000, 80)));
    return true;
  });
  w.Expect(Segment(4000, 80));
  const Bytes out(60, 7);
  w.Step([&w, &out] {
    w.Send(out);
    return true;
  });
  w.Step([&w, &out] { return !w.card.sent.empty() && w.card.sent[0] == out; });
  w.Step([&w] {  // which is completed
    uint32_t frame = 0;
    return w.vi.Completed(&frame, 1) == 1;
  });
  // A narrower filter that leaves a flow to the kernel: the card's rule is the wider one.
  w.Step([&w] {
    Msg m;
    m.type = Type::kAddFlow;
    m.slot = w.slot;
    m.flags = PSTN_XDP_PASS;
    m.flow = {Ip(2), Ip(1), htons(80), htons(5000), 0, 6, 0};
    return send(w.line.get(), &m, sizeof(m), 0) == sizeof(m);
  });
  w.Step([&w] {
    Msg m;
    return recv(w.line.get(), &m, sizeof(m), MSG_DONTWAIT) == sizeof(m);
  });
  w.Step([&w] { return w.card.Arrive(Segment(5000, 80)); });
  w.Step([&w] { return w.kernel.written.size() == 1 && w.kernel.written[0] == Segment(5000, 80); });
  // Errors: of the program's packets, and of the kernel's.
  w.Step([&w] {
    w.kernel.Copy(Error(81, 4000));
    w.kernel.Copy(Error(80, 4000));
    return true;
  });
  w.Expect(Error(80, 4000));
  CHECK(w.Run());
  CHECK(w.kernel.written.size() == 1);
  CHECK(w.card.rules().size() == 1);
}

TEST_CASE("verbs loop: rules end with the program, and with its filters") {
  LoopWorld w;
  w.OpenVi();
  w.AddPort(80);
  w.AddPort(81);
  w.Step([&w] {
    CHECK(w.card.rules().size() == 2);
    Msg m;
    m.type = Type::kRemovePort;
    m.slot = w.slot + 1;  // not its
    m.port = {Ip(2), htons(80), 0, 6, {}};
    REQUIRE(send(w.line.get(), &m, sizeof(m), 0) == sizeof(m));
    m.slot = w.slot;
    m.port.port = htons(81);
    return send(w.line.get(), &m, sizeof(m), 0) == sizeof(m);
  });
  w.Step([&w] { return w.card.rules().size() == 1; });
  w.Step([&w] {
    CHECK(w.card.Arrive(Segment(4000, 80)));
    CHECK_FALSE(w.card.Arrive(Segment(4000, 81)));
    w.drivers_bell.Reset();
    w.bell.Reset();  // the program is gone
    return true;
  });
  w.Step([&w] { return w.card.rules().empty(); });
  CHECK(w.Run());
}

TEST_CASE(
    "verbs loop: a filter that the card refuses is refused, and its packets are the kernel's") {
  LoopWorld w;
  w.OpenVi();
  w.Step([&w] {
    w.card.rules_max = 1;
    return true;
  });
  w.AddPort(80);
  w.AddPort(81, ENOSPC);
  w.AddPort(82, 0, PSTN_XDP_PASS);  // needs none
  w.Step([&w] {
    w.card.rules_max = 9;
    w.card.flow_error = EOPNOTSUPP;
    return true;
  });
  w.AddPort(83, EOPNOTSUPP);
  w.Step([&w] {
    w.card.flow_error = EPERM;
    return true;
  });
  w.AddPort(84, EPERM);
  w.Step([&w] {
    w.card.flow_error = 0;
    return true;
  });
  w.AddPort(85);
  w.Step([&w] {
    for (uint16_t port = 81; port <= 84; port++) CHECK_FALSE(w.card.Arrive(Segment(4000, port)));
    return w.card.Arrive(Segment(4000, 85));
  });
  w.Expect(Segment(4000, 85));
  CHECK(w.Run());
}

TEST_CASE("verbs loop: after an error of the queue pair it goes on, and a burst is not lost") {
  LoopWorld w;
  w.OpenVi();
  w.AddPort(80);
  w.Step([&w] {
    w.card.Err();
    w.Send(Bytes(60, 1));  // waits in the program's ring, or is lost with the queue
    w.Send(Bytes(60, 2));
    return true;
  });
  w.Step([&w] { return w.card.state() == IBV_QPS_RTS; });
  w.Step([&w] { return w.card.Arrive(Segment(4000, 80)); });
  w.Expect(Segment(4000, 80));
  w.Step([&w] {
    w.Send(Bytes(60, 3));
    return true;
  });
  w.Step([&w] { return !w.card.sent.empty() && w.card.sent.back() == Bytes(60, 3); });
  CHECK(w.Run());
  CHECK(w.card.rules().size() == 1);
}

TEST_CASE("verbs loop: the link's state reaches the program; a removed device ends the driver") {
  LoopWorld w;
  w.OpenVi();
  w.Step([&w] {
    w.card.port_active = false;
    return true;
  });
  w.Step([&w] { return w.vi.Check() == ViStatus::kDown; });
  w.Step([&w] {
    w.card.port_active = true;
    return true;
  });
  w.Step([&w] { return w.vi.Check() == ViStatus::kOk; });
  w.Step([&w] {
    w.card.events = {IBV_EVENT_DEVICE_FATAL};
    return true;
  });
  w.Step([] { return false; });  // does not come to an end by the test
  CHECK_FALSE(w.Run());
}

}  // namespace
}  // namespace postern::verbsnic
