// SPDX-License-Identifier: Apache-2.0
// A world of workers for Python, over shmbroker_remote.h. The functions take positions only and nanoseconds, because
// only the package calls them (shmbroker/torch/rpc).
//
// An arriving message is taken out of the library at once: its bytes as a bytearray, its regions and references as
// objects. So no buffer in the interpreter depends on a request that is answered already, or on a future that has gone.
// Nothing here calls the library with the GIL where the library may wait or may call Python.
#pragma once

#include <deque>
#include <vector>

#include "python/core/objects.hpp"
#include "spawn/face/shmbroker_remote.h"

namespace shmb::python::remote {

struct World {
  PyObject_HEAD shmb_remote* handle;  // nullptr: not joined yet, or closed
  Calls calls;
  PyObject* handler;  // called with each Request; owned
  Session* session;   // made when first needed; owned
  void finish();
};

struct Future {
  PyObject_HEAD shmb_future* handle;
  Calls calls;
  World* world;  // owned
  void finish();
};

struct Request {
  PyObject_HEAD shmb_request* handle;  // nullptr: answered
  World* world;                        // owned
};

struct Reference {
  PyObject_HEAD shmb_reference* handle;
  Calls calls;
  World* world;  // owned
  void finish();
};

struct Types {
  PyTypeObject *world, *future, *request, *reference, *copy;
};
extern Types types;

// A thread of the library takes the GIL. The package ends the worlds before the interpreter ends. A thread may be in a
// function of the program then, so each call of Python under this lock is made by `or_stay`.
class Locked {
 public:
  Locked() : state_(or_stay([] { return PyGILState_Ensure(); })) {}
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// A message to send: a buffer or None, and two sequences of regions and references. Their handles stay open meanwhile.
class Payload {
 public:
  Payload(PyObject* data, PyObject* regions, PyObject* references);
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;
  ~Payload();
  explicit operator bool() const { return good_; }
  const shmb_payload* c() const { return &c_; }

 private:
  bool read(PyObject* data, PyObject* regions, PyObject* references);
  shmb_payload c_{};
  Py_buffer view_{};
  std::vector<shmb_region*> regions_;
  std::vector<shmb_reference*> references_;
  std::deque<Call<Region>> open_regions_;
  std::deque<Call<Reference>> open_references_;
  std::vector<Ref> kept_;
  bool good_;
};

// (data, regions, references) of what has arrived, taken out of it. Empty with an exception set.
Ref take(World* world, shmb_content* content);
// (status, rank, worker, type, text, trace, causes)
Ref describe(const shmb_remote_failure& failure);

PyObject* make_future(World* world, shmb_future* handle);
PyObject* make_request(World* world, shmb_request* handle);
PyObject* make_reference(World* world, shmb_reference* handle);
PyObject* session_of(World* world);  // borrowed

// Each adds its type or its functions. False: an exception is set.
bool add_world(PyObject* module);
bool add_future(PyObject* module);
bool add_request(PyObject* module);
bool add_reference(PyObject* module);
bool add_copy(PyObject* module);

}  // namespace shmb::python::remote
