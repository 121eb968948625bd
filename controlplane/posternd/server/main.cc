// main.cc - posternd: command line, becoming a daemon, the loop.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <string>

#include "../../command_line/command_line.h"
#include "../directory/directory.h"
#include "../guard/rights.h"
#include "../kit/event.h"
#include "../kit/fd.h"
#include "../kit/log.h"
#include "../kit/runtime_dir.h"
#include "../nic/vis.h"
#include "base/lock.h"
#include "base/schema/options.h"
#include "server.h"
#include "state/area.h"
#include "system.h"

#ifndef POSTERN_VERSION
#define POSTERN_VERSION "unknown"
#endif

namespace postern::daemon {
namespace {

struct Arguments {
  std::string runtime_dir;
  uint32_t idle_sec = 10;
  uint32_t netlink_bytes = 0;
  bool foreground = false;
  bool verbose = false;
  std::string log_level = "info";
  bool system = false;
  bool make_bells = false;
  std::string vi = "off";
  SystemOptions broker_options;
  std::string broker = std::string(kSystemDir) + "/" + kBrokerSocket;
};

// Pipes and terminals of the process that started us must not stay open for as long as we live.
void CloseInherited() { (void)syscall(SYS_close_range, 3U, ~0U, 0U); }

// Those of the program that has started us are not meant for us: each process costs a pidfd and a
// socket, each link group a memfd. Root can take them off.
void RaiseLimits() {
  for (const auto which : {RLIMIT_NOFILE, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_CPU}) {
    rlimit limit{};
    if (getrlimit(which, &limit) != 0) continue;
    constexpr rlimit kNone{RLIM_INFINITY, RLIM_INFINITY};
    if (which != RLIMIT_NOFILE && setrlimit(which, &kNone) == 0) continue;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(which, &limit);
  }
}

// The parent stays until the child is ready or has failed, so that the process that started us can
// connect when we return. In the child: the end of the pipe to tell it with.
UniqueFd Daemonize() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd parent_end(ends[0]), child_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return {};
  if (pid > 0) {
    child_end.Reset();
    unsigned char status = 1;
    if (read(parent_end.get(), &status, 1) != 1) status = 1;
    _exit(status);
  }
  setsid();
  return child_end;
}

void Tell(UniqueFd& parent, unsigned char status) {
  if (parent.ok()) (void)!write(parent.get(), &status, 1);
  parent.Reset();
}

void DetachStdio(const RuntimeDir& runtime) {
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const bool logs = LogTo(runtime.File("posternd.log"));
  if (null.ok()) {
    dup2(null.get(), 0);
    dup2(null.get(), 1);
  }
  if (!logs && null.ok()) dup2(null.get(), 2);
  (void)!chdir("/");
}

int Fail(UniqueFd& parent, const char* what, int error) {
  Warn("%s: %s", what, strerror(error));
  Tell(parent, 1);
  return 1;
}

struct FreeBase {
  void operator()(event_base* base) const { event_base_free(base); }
};

struct Startup {
  const RuntimeDir& runtime;
  const Arguments& arguments;
  UniqueFd& parent;
};

// The process that started us may go on.
void Ready(void* context) {
  const Startup& startup = *static_cast<Startup*>(context);
  Tell(startup.parent, 0);
  if (!startup.arguments.foreground) DetachStdio(startup.runtime);
  Inform("ready in %s, version " POSTERN_VERSION, startup.runtime.File("").c_str());
}

int Run(RuntimeDir& runtime, const Arguments& arguments, UniqueFd& parent) {
  ExpectLies();  // stacks are the programs' to write
  const int locked = runtime.Lock();
  if (locked == -EALREADY) {
    Tell(parent, 0);
    return 0;
  }
  if (locked != 0) return Fail(parent, "lock", -locked);
  if (const int error = runtime.WritePid(); error != 0) return Fail(parent, "pid file", -error);
  std::unique_ptr<event_base, FreeBase> base(event_base_new());
  if (base == nullptr) return Fail(parent, "event loop", ENOMEM);
  const auto stop = [&base] { event_base_loopbreak(base.get()); };
  Event terminated(base.get(), SIGTERM, static_cast<short>(EV_SIGNAL | EV_PERSIST), stop);
  Event interrupted(base.get(), SIGINT, static_cast<short>(EV_SIGNAL | EV_PERSIST), stop);
  terminated.Add();
  interrupted.Add();
  Startup startup{runtime, arguments, parent};
  if (arguments.system)
    return ServeSystem(base.get(), runtime, arguments.broker_options, Ready, &startup);
  Directory directory;
  if (const int error = directory.Create(NewUuid()); error != 0)
    return Fail(parent, "directory", -error);
  UniqueFd listener = runtime.Listen();
  if (!listener.ok()) return Fail(parent, "posternd.sock", errno);
  UniqueFd abstract = runtime.ListenAbstract();
  if (!abstract.ok())
    Warn("programs that change their user or root can't come back: %s", strerror(errno));
  Vis vis(base.get(), arguments.vi);
  (void)GiveUpRights(Role::kOneUser, vis.enabled());
  Server server(base.get(), directory, std::move(listener), std::move(abstract),
                arguments.runtime_dir, arguments.idle_sec, arguments.broker,
                arguments.broker_options.policy, vis, arguments.netlink_bytes);
  Ready(&startup);
  event_base_dispatch(base.get());
  runtime.RemoveSocket();
  Inform("leaving");
  return 0;
}

constexpr const char* kLogLevels[] = {"none", "warn", "info", "debug"};

LogDetail DetailOf(const Arguments& arguments) {
  if (arguments.verbose) return LogDetail::kDebug;
  unsigned level = 0;
  while (arguments.log_level != kLogLevels[level]) level++;
  return static_cast<LogDetail>(level);
}

std::string ComplainOfLevel(const std::string& text) {
  for (const char* level : kLogLevels) {
    if (text == level) return "";
  }
  return "none, warn, info or debug, not '" + text + "'";
}

int Main(const Arguments& arguments) {
  // ThreadSanitizer makes its table of late signals in a thread's first call that may block, and
  // loses a signal that comes meanwhile: SIGTERM just after "ready", without this.
  (void)poll(nullptr, 0, 0);
  SetLogDetail(DetailOf(arguments));
  CloseInherited();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // memory that is too long for the limit is an error
  umask(arguments.system ? 022 : 077);
  RaiseLimits();
  RuntimeDir runtime(arguments.runtime_dir, arguments.system ? RuntimeDir::Audience::kEveryone
                                                             : RuntimeDir::Audience::kUser);
  UniqueFd parent;
  if (const int error = runtime.Prepare(); error != 0) {
    return Fail(parent, arguments.runtime_dir.c_str(), -error);
  }
  if (arguments.make_bells) return MakeBells(runtime);
  // Before anything that is bound to the thread: the directory's mutex is.
  if (!arguments.foreground) {
    parent = Daemonize();
    if (!parent.ok()) return Fail(parent, "fork", errno);
  }
  return Run(runtime, arguments, parent);
}

// The wrapper hands its options on as POSTERN_* variables; what it does not know it has said
// already.
uint32_t IdleSecFromEnv() {
  Options options = OptionsDefault();
  (void)OptionsLoadEnv(
      options, environ, [](void*, const char* text) { Warn("%s", text); }, nullptr);
  return static_cast<uint32_t>(options.daemon_idle_sec);
}

int ParseAndRun(int argc, char** argv) {
  Arguments arguments;
  arguments.idle_sec = IdleSecFromEnv();
  CommandLine line(
      "posternd - introduces Postern's programs to each other, and cleans up after them");
  line.Version("posternd " POSTERN_VERSION);
  const auto system =
      line.Flag("--system", arguments.system,
                "Be the broker that introduces the posternds of all users to each other");
  line.Option("--runtime-dir", arguments.runtime_dir,
              "Directory of the socket; made if missing (--system: /run/postern)");
  line.Option("--policy", arguments.broker_options.policy,
              "The host's rules: who may reach whom (with --system), and whether connections "
              "take a path through memory at all");
  line.Option("--syn-option", arguments.broker_options.syn_option,
              "With --system: mark SYNs, for the processes of this cgroup (v2) directory; "
              "auto: of the host; off")
      .Needs(system);
  line.Option("--syn-option-pins", arguments.broker_options.syn_option_pins,
              "Directory of a bpffs that keeps --syn-option in force while the broker restarts")
      .Needs(system);
  line.Flag("--make-bells", arguments.make_bells,
            "With --system: make the doorbells' network namespace, and leave")
      .Needs(system);
  line.Option("--vi", arguments.vi,
              "Interfaces, separated by commas, of which programs may have their packets "
              "themselves (AF_XDP; needs root); any; tap:NAME: by a TAP, with the kernel's "
              "segmentation; soft:NAME: one of postern-softnic's; off");
  line.Option("--broker", arguments.broker, "Socket of the host's broker, if there is one");
  line.Option("--idle-sec", arguments.idle_sec,
              "Leave after so many seconds without a client; 0: never (daemon.idle_sec)")
      .Range(0, 86400);
  line.Option("--netlink-bytes", arguments.netlink_bytes,
              "Receive buffer for what the kernel tells of routes; 0: 4 MiB");
  line.Flag("--foreground", arguments.foreground, "Stay in the foreground, log to standard error");
  line.Option("--log-level", arguments.log_level,
              "none, warn: what goes wrong; info: programs that come and go, too; debug: all")
      .Check(ComplainOfLevel)
      .ShowDefault();
  line.Flag("--verbose", arguments.verbose, "The same as --log-level debug");
  if (const auto over = line.Parse(argc, argv)) return *over;
  if (arguments.runtime_dir.empty() && arguments.system) arguments.runtime_dir = kSystemDir;
  if (arguments.runtime_dir.empty()) {
    fprintf(stderr, "posternd: --runtime-dir is required\n");
    return 2;
  }
  arguments.broker_options.vi = arguments.vi;
  return Main(arguments);
}

}  // namespace
}  // namespace postern::daemon

int main(int argc, char** argv) {
  try {
    return postern::daemon::ParseAndRun(argc, argv);
  } catch (const std::exception& error) {
    postern::daemon::Warn("%s", error.what());
    return 1;
  }
}
