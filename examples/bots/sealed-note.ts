/**
 * Input: `{ patient, note }` stores a note that only this bot can read, encrypted by AES-GCM with a key derived from
 * the Project's secret NOTE_KEY; `{ communication }` decrypts one.
 */
import { createCipheriv, createDecipheriv, randomBytes, scryptSync } from 'node:crypto'
import type { BotEvent, MedplumClient } from '@medplum/core'

interface Input {
  readonly patient?: string
  readonly note?: string
  readonly communication?: string
}

export async function handler(medplum: MedplumClient, event: BotEvent<Input>) {
  const { patient, note, communication } = event.input
  const password = event.secrets.NOTE_KEY?.valueString
  if (!password) throw new Error('The secret NOTE_KEY is needed')
  if (communication !== undefined) {
    const kept = await medplum.readResource('Communication', communication)
    return { note: opened(kept.payload?.[0]?.contentString ?? '', password) }
  }
  const kept = await medplum.createResource({
    resourceType: 'Communication',
    status: 'completed',
    subject: { reference: `Patient/${patient}` },
    payload: [{ contentString: sealed(note ?? '', password) }],
  })
  return { communication: kept.id }
}

function sealed(note: string, password: string): string {
  const [salt, iv] = [randomBytes(16), randomBytes(12)]
  const cipher = createCipheriv('aes-256-gcm', scryptSync(password, salt, 32), iv)
  const text = Buffer.concat([cipher.update(note, 'utf8'), cipher.final()])
  return [salt, iv, cipher.getAuthTag(), text].map((part) => part.toString('base64')).join('.')
}

function opened(text: string, password: string): string {
  const [salt, iv, tag, note] = text.split('.').map((part) => Buffer.from(part, 'base64'))
  if (!salt || !iv || !tag || !note) throw new Error('This is not a sealed note')
  const decipher = createDecipheriv('aes-256-gcm', scryptSync(password, salt, 32), iv)
  decipher.setAuthTag(tag)
  return Buffer.concat([decipher.update(note), decipher.final()]).toString()
}
