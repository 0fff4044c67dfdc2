/** A signed-in client of a running service, for demo and bench: BASE_URL and the first-start credentials. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'

export interface Session {
  readonly baseUrl: string
  readonly token: string
  get(url: string): Promise<Record<string, unknown>>
  post(url: string, body: unknown): Promise<Record<string, unknown>>
  delete(url: string): Promise<void>
  /** Any body, the answer as text. Throws on a status outside 2xx. */
  send(method: string, url: string, body: string, contentType: string): Promise<string>
}

/** The address that `npm start` prints. */
export function serviceAddress(): string {
  return process.env.BASE_URL ?? `http://localhost:${process.env.PORT ?? 8103}/`
}

interface Client {
  readonly id: string
  readonly secret: string
}

/** Client credentials sign-in; without a client it is the super admin's of the first start. */
export async function connect(client?: Client): Promise<Session> {
  const baseUrl = serviceAddress()
  const { id, secret } = client ?? (await superAdminClient())
  const form = new URLSearchParams({
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: secret,
  })
  const response = await fetch(new URL('oauth2/token', baseUrl), {
    method: 'POST',
    body: form,
  }).catch((error: Error) => {
    throw new Error(
      `No service answers at ${baseUrl}; is \`npm start\` running? (${error.message})`,
    )
  })
  if (!response.ok) {
    throw new Error(`Sign-in failed with ${response.status}: ${await response.text()}`)
  }
  const { access_token: token } = (await response.json()) as { access_token: string }

  async function send(method: string, url: string, body?: string, contentType?: string) {
    const answer = await fetch(new URL(url, baseUrl), {
      method,
      headers: {
        Authorization: `Bearer ${token}`,
        ...(contentType === undefined ? {} : { 'Content-Type': contentType }),
      },
      ...(body === undefined ? {} : { body }),
    })
    const text = await answer.text()
    if (!answer.ok) throw new Error(`${method} ${url} answered ${answer.status}: ${text}`)
    return text
  }

  return {
    baseUrl,
    token,
    get: async (url) => JSON.parse(await send('GET', url)),
    post: async (url, body) =>
      JSON.parse(await send('POST', url, JSON.stringify(body), 'application/fhir+json')),
    delete: async (url) => void (await send('DELETE', url)),
    send,
  }
}

/** From the environment, else from the file of the first start. */
export async function superAdminClient(): Promise<Client> {
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
