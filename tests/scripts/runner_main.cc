// SPDX-License-Identifier: Apache-2.0
// runner_main.cc - plays packet scripts.
//
//   packet_scripts [--verbose] [--ipv6] [--rows] [--seed N] SCRIPT...
//
// Exit code: 0 all passed, 1 not. A line for each script, with what was left out of it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "runner.h"

namespace {

using namespace postern::scripts;  // NOLINT(google-build-using-namespace): main of that namespace

bool PlayOne(const char* path, const RunnerOptions& options, uint64_t seed, bool rows) {
  std::ifstream file(path);
  if (!file) {
    printf("fail  %s: cannot be read\n", path);
    return false;
  }
  std::ostringstream text;
  text << file.rdbuf();
  Script script;
  std::string error;
  if (!ParseScript(text.str(), script, error)) {
    printf("fail  %s: %s\n", path, error.c_str());
    return false;
  }
  const std::unique_ptr<Sut> sut = MakeTcpSut(seed);
  if (options.is_v6) sut->SetMtu(1520);  // so that the MSS is as over IPv4
  if (rows) sut->UseRows();
  Runner runner(*sut, path, options);
  const bool ok = runner.Run(script);
  printf("%s  %s%s%s\n", ok ? "pass" : "fail", path, ok ? "" : "\n      ",
         ok ? "" : runner.error().c_str());
  if (options.verbose) {
    const std::set<std::string> notes(runner.notes().begin(), runner.notes().end());
    for (const std::string& note : notes) printf("      left out: %s\n", note.c_str());
  }
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  RunnerOptions options;
  uint64_t seed = 1;
  bool rows = false;
  int passed = 0, failed = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--verbose") == 0) {
      options.verbose = true;
    } else if (strcmp(argv[i], "--ipv6") == 0) {
      options.is_v6 = true;
    } else if (strcmp(argv[i], "--rows") == 0) {
      rows = true;
    } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = strtoull(argv[++i], nullptr, 0);
    } else {
      (PlayOne(argv[i], options, seed, rows) ? passed : failed)++;
    }
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0;
}
