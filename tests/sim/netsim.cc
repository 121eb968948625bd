// SPDX-License-Identifier: Apache-2.0
// netsim.cc - goodput by loss: a bulk transfer over a link of 100 Mbit/s for each loss, round trip,
// reordering and congestion control, compared exactly with the snapshot.
//
//   netsim [SNAPSHOT [--update | --some]]    without a snapshot: prints the table, and what to
//   expect netsim --json                            the same for perf/loss.py
//
// Virtual time and fixed seeds: the same program gives the same figures on any machine, so a change
// of any of them is a change of TCP's behaviour. Look at it, and if it is meant, --update.
//
// What to expect (column "formula"): for Reno the model of Padhye et al. (SIGCOMM 98), which for
// rare losses is that of Mathis et al. (CCR 97), MSS/RTT * sqrt(3/2p), and for frequent ones
// accounts for time-outs (SACK and RACK need fewer of them: the figures may be above it); for CUBIC
// the larger of that and of RFC 9438, 5.1, equation (6); never more than the link.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "apps.h"

namespace postern::sim {
namespace {

constexpr uint64_t kRateBps = 100'000'000;
constexpr uint64_t kBytesMax = 32'000'000, kTimeMaxNs = 60 * kSecond;
constexpr uint32_t kMss = 1448;

struct Point {
  const char* congestion;
  uint32_t rtt_ms;
  double late, loss;
};

struct Figures {
  uint64_t kbit_s = 0, resent_segments = 0, needless = 0, rtos = 0, lost = 0;
  std::string problem;
};

std::vector<Point> Points() {
  std::vector<Point> points;
  for (const char* congestion : {"cubic", "reno"}) {
    for (const uint32_t rtt_ms : {1u, 20u, 40u, 100u}) {
      for (const double late : {0.0, 0.1}) {
        for (const double loss : {0.0, 0.001, 0.01, 0.05, 0.1})
          points.push_back({congestion, rtt_ms, late, loss});
      }
    }
  }
  return points;
}

Figures Measure(const Point& point, uint64_t seed) {
  World world(seed);
  HostSettings host;
  const bool is_reno = strcmp(point.congestion, "reno") == 0;
  host.tcp_settings.congestion =
      static_cast<uint32_t>(is_reno ? tcp::CongestionKind::kNewReno : tcp::CongestionKind::kCubic);
  SimHost& sender = world.AddHost(host);
  SimHost& receiver = world.AddHost(host);
  const uint64_t rtt_ns = point.rtt_ms * kMillisecond;
  LinkSettings link = {};
  link.delay_ns = rtt_ns / 2;
  LinkModel& back = world.AddLink(link);
  link.loss = point.loss;
  link.late = point.late;
  link.late_ns = rtt_ns / 4;
  link.rate_bps = kRateBps;
  link.queue_bytes = std::max<uint64_t>(100'000, kRateBps / 8 * point.rtt_ms / 1000);
  LinkModel& there = world.AddLink(link);
  world.Join(0, 1, {{&there, 1500}});
  world.Join(1, 0, {{&back, 1500}});

  AppSettings app;
  app.unchecked = app.keeps_open = true;
  app.read_max = app.write_max = 65'536;
  receiver.Listen(1, [&](const Segment&) {
    app.is_second = true;
    return std::make_unique<StreamApp>(app, seed);
  });
  AppSettings writer = app;
  writer.write_total = uint64_t{1} << 40;
  SimConn& conn = sender.Connect(1, 1, 1, std::make_unique<StreamApp>(writer, seed));

  const uint64_t begun_ns = world.events().now_ns();
  while (receiver.bytes_delivered() < kBytesMax &&
         world.events().now_ns() - begun_ns < kTimeMaxNs && world.Problem().empty())
    world.RunFor(10 * kMillisecond);
  Figures figures;
  figures.problem = world.Problem();
  const uint64_t took_ms = (world.events().now_ns() - begun_ns) / kMillisecond;
  figures.kbit_s = receiver.bytes_delivered() * 8 / std::max<uint64_t>(took_ms, 1);
  figures.resent_segments = (conn.data_resent + kMss - 1) / kMss;
  figures.lost = there.counts().lost + there.counts().overflowed;
  figures.needless = figures.resent_segments - std::min(figures.resent_segments, figures.lost);
  figures.rtos = conn.rtos;
  return figures;
}

// kbit/s.
double Formula(const Point& point) {
  const double link = static_cast<double>(kRateBps) * kMss / 1500 / 1000;
  if (point.loss == 0) return link;
  const double rtt = point.rtt_ms / 1000.0, p = point.loss, rto = 0.2 + rtt;
  const double segments =
      1 / (rtt * std::sqrt(2 * p / 3) +
           rto * std::min(1.0, 3 * std::sqrt(3 * p / 8)) * p * (1 + 32 * p * p));
  double expected = segments;
  if (strcmp(point.congestion, "cubic") == 0)
    expected = std::max(expected, 1.054 * std::pow(rtt, 0.75) / std::pow(p, 0.75) / rtt);
  return std::min(link, expected * kMss * 8 / 1000);
}

std::string Line(const Point& point, const Figures& figures) {
  char line[160];
  snprintf(line, sizeof(line),
           "%-5s rtt %3u ms  late %2.0f %%  loss %4.1f %%  %7.3f Mbit/s  %6llu resent  %4llu RTOs",
           point.congestion, point.rtt_ms, point.late * 100, point.loss * 100,
           static_cast<double>(figures.kbit_s) / 1000,
           static_cast<unsigned long long>(figures.resent_segments),
           static_cast<unsigned long long>(figures.rtos));
  return line;
}

int Json() {
  const char* comma = "";
  printf("[");
  for (const Point& point : Points()) {
    const Figures figures = Measure(point, 1);
    printf(
        "%s\n {\"congestion\": \"%s\", \"rtt_ms\": %u, \"late\": %g, \"loss\": %g, \"mbit_s\": "
        "%.3f, "
        "\"resent\": %llu, \"rtos\": %llu, \"formula_mbit_s\": %.3f}",
        comma, point.congestion, point.rtt_ms, point.late, point.loss,
        static_cast<double>(figures.kbit_s) / 1000,
        static_cast<unsigned long long>(figures.resent_segments),
        static_cast<unsigned long long>(figures.rtos), Formula(point) / 1000);
    comma = ",";
  }
  printf("\n]\n");
  return 0;
}

int Show() {
  for (const Point& point : Points()) {
    const Figures figures = Measure(point, 1);
    const double formula = Formula(point);
    printf("%s  %5llu lost  formula %7.3f  %5.2fx %s\n", Line(point, figures).c_str(),
           static_cast<unsigned long long>(figures.lost), formula / 1000,
           static_cast<double>(figures.kbit_s) / formula, figures.problem.c_str());
    fflush(stdout);
  }
  return 0;
}

int Compare(const char* path, bool update, bool some) {
  std::ifstream file(path);
  std::string wanted;
  std::ostringstream all;
  int different = 0, compared = 0;
  const std::vector<Point> points = Points();
  for (size_t i = 0; i < points.size(); i++) {
    const bool has = static_cast<bool>(std::getline(file, wanted));
    if (some && i % 9 != 0) continue;
    const Figures figures = Measure(points[i], 1);
    const std::string line = Line(points[i], figures);
    all << line << '\n';
    compared++;
    if (!figures.problem.empty()) {
      printf("%s\n  %s\n", line.c_str(), figures.problem.c_str());
      return 1;
    }
    if (update || (has && line == wanted)) continue;
    printf("- %s\n+ %s\n", has ? wanted.c_str() : "(nothing)", line.c_str());
    different++;
  }
  if (update) {
    std::ofstream(path) << all.str();
    return 0;
  }
  printf("%d points, %d different from %s\n", compared, different, path);
  return different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace postern::sim

int main(int argc, char** argv) {
  using namespace postern::sim;  // NOLINT(google-build-using-namespace): main of that namespace
  if (argc == 1) return Show();
  if (strcmp(argv[1], "--json") == 0) return Json();
  const bool update = argc > 2 && strcmp(argv[2], "--update") == 0;
  return Compare(argv[1], update, argc > 2 && strcmp(argv[2], "--some") == 0);
}
