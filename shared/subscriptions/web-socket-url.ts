export const SOCKET_PATH = 'ws/subscriptions-r4'

/** Where web sockets connect to. */
export function webSocketUrl(baseUrl: string): string {
  return baseUrl.replace(/^http/, 'ws') + SOCKET_PATH
}
