/**
 * A duplicated tab has a copy of the login of its original. A refresh token is valid once, so that the renewal of the
 * second of them would end both sessions: the login stays with the tab that has it.
 */
import { parseJWTPayload } from '@medplum/core'

/** A page that is loaded again has to wait until the one before it is gone. */
const WAIT_MS = 1000

/** Holds the login of this token until the page ends. Returns false while another tab holds it. */
export function holdLogin(accessToken: string): Promise<boolean> {
  const { locks }: { readonly locks?: LockManager } = navigator
  // Browsers have none on a page without TLS.
  if (locks === undefined) return Promise.resolve(true)
  const name = `botica-login:${parseJWTPayload(accessToken).login_id}`
  return new Promise((resolve) => {
    const hold = () => {
      resolve(true)
      return new Promise<never>(() => undefined)
    }
    const signal = AbortSignal.timeout(WAIT_MS)
    locks.request(name, { signal }, hold).catch(() => resolve(false))
  })
}
