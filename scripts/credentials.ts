/** The super admin's credentials of the first start, kept in DATA_DIR for `npm start`. */
import { randomBytes, randomUUID } from 'node:crypto'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

interface Credentials {
  readonly email: string
  readonly password: string
  readonly clientId: string
  readonly clientSecret: string
}

export function credentialsFile(folder: string): string {
  return join(folder, 'credentials.json')
}

export function readCredentials(folder: string, env: NodeJS.ProcessEnv): Credentials {
  const file = credentialsFile(folder)
  const kept: Partial<Credentials> = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {}
  return {
    email: env.SUPER_ADMIN_EMAIL || kept.email || 'admin@example.com',
    password: env.SUPER_ADMIN_PASSWORD || kept.password || randomSecret(),
    clientId: env.SUPER_ADMIN_CLIENT_ID || kept.clientId || randomUUID(),
    clientSecret: env.SUPER_ADMIN_CLIENT_SECRET || kept.clientSecret || randomSecret(),
  }
}

export function writeCredentials(folder: string, credentials: Credentials): void {
  const text = `${JSON.stringify(credentials, undefined, 2)}\n`
  writeFileSync(credentialsFile(folder), text, { mode: 0o600 })
}

export function toEnvironment(credentials: Credentials): NodeJS.ProcessEnv {
  return {
    SUPER_ADMIN_EMAIL: credentials.email,
    SUPER_ADMIN_PASSWORD: credentials.password,
    SUPER_ADMIN_CLIENT_ID: credentials.clientId,
    SUPER_ADMIN_CLIENT_SECRET: credentials.clientSecret,
  }
}

function randomSecret(): string {
  return randomBytes(24).toString('base64url')
}
