/** A program that passes tools to a language model, with recorded messages of the model in the place of its vendor. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { aTool, type Called, openModel } from './mcp.ts'

interface Message {
  readonly role: 'user' | 'assistant'
  readonly content: readonly Untyped[]
  readonly stop_reason?: string
}

const botica = await openBotica(t, { worker: true, env: { BOT_TIMEOUT_MS: '100000' } })
const { admin, baseUrl } = botica
const ada = await admin.create(aPatient({ name: [{ family: 'Lovelace', given: ['Ada'] }] }))
await admin.create({
  resourceType: 'Observation',
  status: 'final',
  code: { coding: [{ system: 'http://loinc.org', code: '4548-4' }] },
  subject: { reference: `Patient/${ada.id}` },
  effectiveDateTime: '2026-01-01',
  valueQuantity: { value: 8.1, unit: '%' },
})
const schema = {
  type: 'object',
  properties: {
    patient: { type: 'string', pattern: '^Patient/.+$' },
    code: { type: 'string', description: 'LOINC' },
  },
  required: ['patient', 'code'],
  additionalProperties: false,
}
const code = handler(`
  const { patient, code } = event.input
  const { id } = await medplum.createResource({
    resourceType: 'ServiceRequest', status: 'active', intent: 'order',
    subject: { reference: patient }, code: { coding: [{ system: 'http://loinc.org', code }] },
  })
  return { ordered: 'ServiceRequest/' + id }`)
const bot = await aBot(botica, code, { fields: aTool('order-lab', schema, 'Orders a lab test') })

/** Answers with the next recorded message to any request. */
function recordedModel(patientId: string): () => Message {
  const file = join(import.meta.dirname, '../../data/model-messages.json')
  const text = readFileSync(file, 'utf8').replaceAll('PATIENT_ID', patientId)
  const messages: Message[] = JSON.parse(text)
  return () => messages.shift() ?? { role: 'assistant', content: [], stop_reason: 'end_turn' }
}

t.test(
  'a model reads, corrects a wrong call and runs a bot within the rights of its user',
  async (t) => {
    const entries = ['Patient', 'Observation', 'Bot'].map((resourceType) => ({
      resourceType,
      readonly: true,
    }))
    const member = await memberUnder(botica, { entries })
    const { client, call } = await openModel(t, baseUrl, member.client.token)
    const { tools } = await client.listTools()
    t.ok(tools.some(({ name }) => name === 'order-lab'))

    const next = recordedModel(ada.id)
    const results = new Map<string, Called>()
    const messages: Message[] = [
      { role: 'user', content: [{ type: 'text', text: 'Check the HbA1c of Ada Lovelace.' }] },
    ]
    for (let turn = 0; turn < 10; turn++) {
      const message = next()
      messages.push(message)
      if (message.stop_reason !== 'tool_use') break
      const content = []
      for (const { type, id, name, input } of message.content) {
        if (type !== 'tool_use') continue
        const called = await call(name, input)
        results.set(id, called)
        const { text, isError } = called
        content.push({ type: 'tool_result', tool_use_id: id, content: text, is_error: isError })
      }
      messages.push({ role: 'user', content })
    }
    t.match(messages.at(-1), { stop_reason: 'end_turn' })
    const parsed = (id: string) => JSON.parse(results.get(id)?.text ?? '')
    t.match(parsed('call_1'), { entry: [{ resource: { id: ada.id } }] })
    t.match(parsed('call_2'), { data: { ObservationList: [{ valueQuantity: { value: 8.1 } }] } })
    t.match(results.get('call_3'), { isError: true, text: /must have code; \/patient must match/ })
    t.equal(results.get('call_4')?.isError, false)
    const ordered = await admin.get<Untyped>(parsed('call_4').ordered, { 'X-Medplum': 'extended' })
    t.match(ordered.body, {
      subject: { reference: `Patient/${ada.id}` },
      // The bot has a membership, with its own rights.
      meta: { author: { reference: `Bot/${bot}` } },
    })
    const runId = results.get('call_4')?.runId
    // The result names the run.
    await until(async () => (await admin.get(`Bot/${bot}/$runs`)).text.includes(`${runId}`), 90_000)
  },
)
