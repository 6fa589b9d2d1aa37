// SPDX-License-Identifier: Apache-2.0
// See report.hpp.
#include "tools/benchmarks/kit/report.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <time.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {
namespace {

std::string target_text(Target target) {
  switch (target.kind) {
    case Target::Kind::ratio_at_most:
      return fmt::format("<= {:g} x floor", target.bound);
    case Target::Kind::ratio_at_least:
      return fmt::format(">= {:g} x floor", target.bound);
    case Target::Kind::value_at_most:
      return fmt::format("<= {:g}", target.bound);
    case Target::Kind::none:
      break;
  }
  return "-";
}

std::string number(double value) {
  const double size = std::abs(value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

bool Record::met() const {
  switch (target.kind) {
    case Target::Kind::ratio_at_most:
      return ratio() <= target.bound;
    case Target::Kind::ratio_at_least:
      return ratio() >= target.bound;
    case Target::Kind::value_at_most:
      return value <= target.bound;
    case Target::Kind::none:
      break;
  }
  return true;
}

std::optional<double> Record::adds() const {
  if (unit != "ns" && unit != "us" && unit != "ms") return std::nullopt;
  return value - floor;
}

Record make_record(std::string name, std::string unit, const Pair& pair, Target target) {
  Record record;
  record.name = std::move(name);
  record.unit = std::move(unit);
  record.value = pair.ours.median();
  record.floor = pair.floor.median();
  record.target = target;
  record.n = pair.ours.size();
  record.least = pair.ours.least();
  record.greatest = pair.ours.greatest();
  return record;
}

void Bench::record(Record record) {
  print_record(record);
  records_.push_back(std::move(record));
}

Conditions conditions() {
  Conditions where;
  utsname system{};
  uname(&system);
  where.kernel = fmt::format("{} {}", system.sysname, system.release);
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);)
    if (line.starts_with("model name")) {
      where.cpu = line.substr(line.find(':') + 2);
      break;
    }
  if (where.cpu.empty()) where.cpu = system.machine;
  where.cores = std::thread::hardware_concurrency();
  std::ifstream("/proc/loadavg") >> where.load_before;
  char date[32];
  time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
  where.date = date;
#ifdef __OPTIMIZE__
  where.build = "optimised, " __VERSION__;
#else
  where.build = "not optimised, " __VERSION__;
#endif
  return where;
}

void print_heading(const Conditions& where, bool quick) {
  fmt::print("{}, {} cores, {}, {}, load {:.1f}{}\n", where.cpu, where.cores, where.kernel, where.date,
             where.load_before, quick ? ", --quick: a smoke test, not a measurement" : "");
  fmt::print("{:<30} {:>10} {:>10} {:<6} {:>7} {:>8} {:<15} {:<6} {:>10} {:>10} {:>4}\n", "figure", "value", "floor",
             "unit", "ratio", "adds", "target", "met", "min", "max", "n");
}

void print_record(const Record& record) {
  fmt::print("{:<30} {:>10} {:>10} {:<6} {:>7.2f} {:>8} {:<15} {:<6} {:>10} {:>10} {:>4}\n", record.name,
             number(record.value), number(record.floor), record.unit, record.ratio(),
             record.adds() ? number(*record.adds()) : "", target_text(record.target),
             record.target.kind == Target::Kind::none ? "-" : (record.met() ? "yes" : "NO"), number(record.least),
             number(record.greatest), record.n);
  if (!record.peers.empty()) {
    std::string line;
    for (const auto& [who, value] : record.peers)
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", who, number(value));
    fmt::print("    beside it: {}\n", line);
  }
  std::fflush(stdout);
}

void print_summary(const Bench& bench) {
  int with_target = 0, met = 0;
  for (const Record& record : bench.records())
    if (record.target.kind != Target::Kind::none) ++with_target, met += record.met();
  fmt::print("{} figures; {} of {} targets met\n", bench.records().size(), met, with_target);
}

void write_json(const Bench& bench, const Conditions& where, const std::string& path) {
  nlohmann::ordered_json document = {{"schema", "shmbroker-bench-1"},
                                     {"date", where.date},
                                     {"cpu", where.cpu},
                                     {"cores", where.cores},
                                     {"kernel", where.kernel},
                                     {"build", where.build},
                                     {"load_before", where.load_before},
                                     {"quick", bench.settings().quick}};
  auto& figures = document["figures"] = nlohmann::ordered_json::array();
  for (const Record& record : bench.records()) {
    figures.push_back({{"name", record.name},
                       {"value", record.value},
                       {"unit", record.unit},
                       {"floor", record.floor},
                       {"ratio", record.ratio()},
                       {"target", target_text(record.target)},
                       {"met", record.met()},
                       {"n", record.n},
                       {"min", record.least},
                       {"max", record.greatest},
                       {"engine", record.engine},
                       {"peers", record.peers}});
    if (record.adds()) figures.back()["adds"] = *record.adds();
  }
  std::ofstream out(path);
  out << document.dump(2) << '\n';
  out.flush();
  if (!out) give_up("writing " + path);
}

}  // namespace shmb::bench
