/** `npm run -s botica -- test` runs this against the service of .env, without a deploy. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { MedplumClient } from '@medplum/core'
import { handler } from './bot.ts'

const { MEDPLUM_BASE_URL = '', MEDPLUM_CLIENT_ID = '', MEDPLUM_CLIENT_SECRET = '' } = process.env
const medplum = new MedplumClient({ baseUrl: MEDPLUM_BASE_URL })
await medplum.startClientLogin(MEDPLUM_CLIENT_ID, MEDPLUM_CLIENT_SECRET)

test('a person is stored as a Patient', async () => {
  const input = { family: 'Chalmers', given: 'Peter' }
  const bot = { reference: 'Bot/local' }
  const event = { bot, input, contentType: 'application/json', secrets: {} }

  const { id } = await handler(medplum, event)

  const stored = await medplum.readResource('Patient', id ?? '')
  assert.deepEqual(stored.name, [{ family: 'Chalmers', given: ['Peter'] }])
})
