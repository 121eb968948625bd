// SPDX-License-Identifier: Apache-2.0
// plugin_test.cc - libpostern_packetdrill.so as packetdrill uses it: loaded by name, two threads,
// one of them in calls that block, time asked for and slept away.
//
//   plugin_test LIBRARY
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "../scripts/script_packet.h"
#include "plugin_interface.h"

namespace {

using namespace postern::scripts;  // NOLINT(google-build-using-namespace): a test of that namespace
using postern::tcp::kAck;
using postern::tcp::kFin;
using postern::tcp::kPsh;
using postern::tcp::kSyn;

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (false)

packetdrill_interface table;

long long NowUs() {
  timeval now{};
  CHECK(table.gettimeofday(table.userdata, &now, nullptr) == 0);
  return static_cast<long long>(now.tv_sec) * 1'000'000 + now.tv_usec;
}

TcpPacket Next(long long* sent_us = nullptr) {
  uint8_t buffer[65536];
  size_t bytes = 0;
  long long at_us = 0;
  // Nothing will come by itself until the other thread has made its call.
  for (int tries = 0; tries < 10'000 && bytes == 0; tries++) {
    if (tries != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    bytes = sizeof(buffer);
    CHECK(table.netdev_receive(table.userdata, buffer, &bytes, &at_us) == 0);
  }
  CHECK(bytes != 0);
  TcpPacket packet;
  IcmpPacket icmp;
  std::string why;
  CHECK(Decode(buffer, bytes, packet, icmp, why) == Decoded::kTcp);
  if (sent_us != nullptr) *sent_us = at_us;
  return packet;
}

void Send(const TcpPacket& answered, uint8_t flags, uint32_t seq, uint32_t ack,
          size_t payload = 0) {
  TcpPacket packet;
  packet.flow = answered.flow.Back();
  packet.flags = flags;
  packet.seq = seq;
  packet.ack = ack;
  packet.window = 30'000;
  packet.payload.assign(payload, 0x61);
  const Bytes bytes = Encode(packet);
  CHECK(table.netdev_send(table.userdata, bytes.data(), bytes.size()) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) printf("%s\n", dlerror());
  CHECK(library != nullptr);
  const auto init = reinterpret_cast<void (*)(const char*, packetdrill_interface*)>(
      dlsym(library, "packetdrill_interface_init"));
  CHECK(init != nullptr);
  init("seed=5", &table);

  const int fd = table.socket(table.userdata, AF_INET, SOCK_STREAM, IPPROTO_TCP);
  CHECK(fd >= 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(8080);
  to.sin_addr.s_addr = inet_addr("192.0.2.1");

  // connect() blocks in its own thread for 300 ms of virtual time, in which the SYN is answered.
  const long long begun_us = NowUs();
  long long connected_us = 0;
  int connected = -1;
  std::thread caller([&] {
    connected = table.connect(table.userdata, fd, reinterpret_cast<sockaddr*>(&to), sizeof(to));
    connected_us = NowUs();
  });
  const TcpPacket syn = Next();
  CHECK(syn.flags == kSyn);
  table.usleep(table.userdata, 300'000);
  Send(syn, kSyn | kAck, 1000, syn.seq + 1);
  caller.join();
  CHECK(connected == 0);
  CHECK(connected_us - begun_us >= 300'000);
  CHECK(connected_us - begun_us < 310'000);
  const TcpPacket third = Next();
  CHECK(third.flags == kAck);
  CHECK(third.ack == 1001);

  // A segment that is lost: sent again, by the virtual clock.
  char data[100] = {};
  CHECK(table.write(table.userdata, fd, data, sizeof(data)) == 100);
  long long first_us = 0, again_us = 0;
  const TcpPacket first = Next(&first_us), again = Next(&again_us);
  CHECK(first.payload.size() == 100);
  CHECK(again.seq == first.seq);
  CHECK(again_us - first_us >= 200'000);
  Send(first, kAck, 1001, first.seq + 100);

  // read() blocks until data come, and says what errno does.
  ssize_t got = 0;
  std::thread reader([&] {
    got = table.read(table.userdata, fd, data, sizeof(data));
    NowUs();
  });
  table.usleep(table.userdata, 50'000);
  Send(first, kAck | kPsh, 1001, first.seq + 100, 40);
  reader.join();
  CHECK(got == 40);
  CHECK(table.recv(table.userdata, fd, data, sizeof(data), MSG_DONTWAIT) == -1);
  CHECK(errno == EAGAIN);

  CHECK(table.close(table.userdata, fd) == 0);
  TcpPacket fin = Next();
  while ((fin.flags & kFin) == 0) fin = Next();
  CHECK(fin.ack == 1041);
  table.free(table.userdata);
  printf("1 passed, 0 failed\n");
  return 0;
}
