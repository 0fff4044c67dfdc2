/** Signs a client in to a running service: BASE_URL, with the credentials of the first start by default. */
import { existsSync } from 'node:fs'
import { MedplumClient, normalizeErrorString } from '@medplum/core'
import { credentialsFile, readCredentials } from './credentials.ts'

interface Client {
  readonly id: string
  readonly secret: string
}

export function serviceAddress(): string {
  return process.env.BASE_URL ?? `http://localhost:${process.env.PORT ?? 8103}/`
}

/** Errors: the service's message, or that it is unreachable. */
export async function signIn(baseUrl: string, client: Client): Promise<MedplumClient> {
  const medplum = new MedplumClient({ baseUrl, fetch: fetchWithHint, cacheTime: 0 })
  try {
    await medplum.startClientLogin(client.id, client.secret)
  } catch (error) {
    if (error instanceof ServiceUnreachable) throw error
    throw new Error(`${baseUrl} does not admit client ${client.id}: ${normalizeErrorString(error)}`)
  }
  return medplum
}

class ServiceUnreachable extends Error {}

async function fetchWithHint(
  url: string | URL | Request,
  options?: RequestInit,
): Promise<Response> {
  try {
    return await fetch(url, options)
  } catch (error) {
    if (options?.signal?.aborted) throw error
    const { origin } = new URL(url instanceof Request ? url.url : url)
    throw new ServiceUnreachable(`No service answers at ${origin}; is \`npm start\` running?`)
  }
}

export function readSuperAdminClient(): Client {
  const { SUPER_ADMIN_CLIENT_ID: id, SUPER_ADMIN_CLIENT_SECRET: secret } = process.env
  if (id && secret) return { id, secret }
  const folder = process.env.DATA_DIR ?? '.data'
  const file = credentialsFile(folder)
  if (!existsSync(file)) {
    throw new Error(
      `No credentials: ${file}, written by the first \`npm start\`, is missing; set DATA_DIR, or SUPER_ADMIN_CLIENT_ID and SUPER_ADMIN_CLIENT_SECRET`,
    )
  }
  const { clientId, clientSecret } = readCredentials(folder, {})
  return { id: clientId, secret: clientSecret }
}
