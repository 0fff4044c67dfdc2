/** Signs a client in to a running service: BASE_URL, with the credentials of the first start by default. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { MedplumClient, normalizeErrorString } from '@medplum/core'

interface Client {
  readonly id: string
  readonly secret: string
}

export function serviceAddress(): string {
  return process.env.BASE_URL ?? `http://localhost:${process.env.PORT ?? 8103}/`
}

/** Errors: the service's message, or that it is unreachable. */
export async function signIn(baseUrl: string, client: Client): Promise<MedplumClient> {
  const medplum = new MedplumClient({ baseUrl, fetch: fetchOrSay, cacheTime: 0 })
  try {
    await medplum.startClientLogin(client.id, client.secret)
  } catch (error) {
    if (error instanceof NobodyAnswers) throw error
    throw new Error(`${baseUrl} does not admit client ${client.id}: ${formatError(error)}`)
  }
  return medplum
}

class NobodyAnswers extends Error {}

async function fetchOrSay(url: string | URL | Request, options?: RequestInit): Promise<Response> {
  try {
    return await fetch(url, options)
  } catch (error) {
    if (options?.signal?.aborted) throw error
    const { origin } = new URL(url instanceof Request ? url.url : url)
    throw new NobodyAnswers(`No service answers at ${origin}; is \`npm start\` running?`)
  }
}

export function formatError(error: unknown): string {
  return normalizeErrorString(error)
}

export async function readSuperAdminClient(): Promise<Client> {
  const { SUPER_ADMIN_CLIENT_ID: id, SUPER_ADMIN_CLIENT_SECRET: secret } = process.env
  if (id && secret) return { id, secret }
  const file = path.join(process.env.DATA_DIR ?? '.data', 'credentials.json')
  const text = await readFile(file, 'utf8').catch(() => {
    throw new Error(
      `Nobody to sign in as: ${file}, which the first \`npm start\` writes, is not there; set DATA_DIR, or SUPER_ADMIN_CLIENT_ID and SUPER_ADMIN_CLIENT_SECRET`,
    )
  })
  const { clientId, clientSecret } = JSON.parse(text) as Record<string, string>
  if (!clientId || !clientSecret) throw new Error(`${file} holds no clientId and clientSecret`)
  return { id: clientId, secret: clientSecret }
}
