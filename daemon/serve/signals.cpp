// SPDX-License-Identifier: Apache-2.0
// See signals.hpp.
#include "daemon/serve/signals.hpp"

#include <csignal>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "daemon/kit/log.hpp"

namespace shmb::daemon {

Signals::Signals(Transport& transport, BrokerEvents& books, ServiceManager& manager, const Options& options,
                 std::string serving)
    : transport_(transport), books_(books), manager_(manager), options_(options), serving_(std::move(serving)) {}

Result<void> Signals::start() {
  const int wanted[] = {SIGTERM, SIGINT, SIGHUP};
  auto fd = sys::signal_fd(wanted);
  if (!fd) return system_failure(fd.error(), "signalfd");
  fd_ = std::move(*fd);
  if (auto watched = transport_.engine().watch(fd_.get(), *this); !watched)
    return system_failure(watched.error(), "waiting for signals");
  return {};
}

void Signals::on_readable() {
  while (auto signal = sys::next_signal(fd_.get())) {
    if (*signal == SIGHUP) reload();
    else transport_.stop();
  }
}

void Signals::reload() {
  manager_.reloading();
  auto done = read_again();
  const std::string told = done ? *done : "the limits stay as they were: " + done.error().sentence;
  log::line(done ? log::notice : log::error, told);
  manager_.ready(serving_ + "; " + told);
}

Result<std::string> Signals::read_again() {
  std::vector<std::string> notes;
  SHMB_TRY(fresh, read_settings_again(options_, notes));
  books_.set_limits(fresh.limits);
  transport_.set_limits(fresh.limits);
  std::string told = "limits applied again";
  if (options_.given.file) notes.push_back("configuration read from " + options_.config.file);
  if (notes.empty()) notes.push_back("no configuration file, so these are the defaults");
  for (const std::string& note : notes) told += "; " + note;
  std::string keys;
  for (const std::string& key : keys_that_differ(options_.config, fresh)) keys += (keys.empty() ? "" : ", ") + key;
  if (!keys.empty()) told += "; for these keys restart the broker: " + keys;
  return told;
}

}  // namespace shmb::daemon
