// SPDX-License-Identifier: Apache-2.0
// Lines to stderr for the journal or a log file. A lost diagnostic never takes the broker down and never makes it
// wait: a line that cannot be written at once is counted and dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shmb::daemon::log {

// syslog(3) numbers.
enum Priority : int { error = 3, warning = 4, notice = 5, info = 6, debug = 7 };

// What stands before the text of a line. A collector (the journal) adds time, program and pid itself, and reads a
// priority. The log file of a private broker has nobody who adds them, and several brokers write to it one after
// another.
enum class Form { collector, file };
void set_form(Form wanted);        // collector until it is called
void set_threshold(int priority);  // lines above it are not written
bool enabled(int priority);
// One line; control bytes are shown as \xNN, because parts of it may come from a peer.
void line(int priority, std::string_view text);
// Why the broker ends. The program's name is in the line, whoever reads it.
void failure(const std::string& text);
// For faults that a peer can cause at will: at most a few lines a second, the rest counted and told once later.
void peer_fault(std::string_view text);

}  // namespace shmb::daemon::log
