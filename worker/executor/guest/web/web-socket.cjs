/** The constants of web sockets, which libraries read when they load; bots have no sockets. */

const states = ['CONNECTING', 'OPEN', 'CLOSING', 'CLOSED']

class WebSocket {
  constructor() {
    throw new Error('Bots cannot open web sockets: send an HTTP request with fetch')
  }
}

for (const target of [WebSocket, WebSocket.prototype]) {
  for (const [value, name] of states.entries()) {
    Object.defineProperty(target, name, { enumerable: true, value })
  }
}

module.exports = { WebSocket }
