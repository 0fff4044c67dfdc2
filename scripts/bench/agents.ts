/**
 * Messages through one agent and one worker: each device waits for the ACK on its connection before it sends the next
 * message. The bound is `$execute` of the same bot by as many callers.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { WebSocket } from 'ws'
import { type Figure, type Load, measure, openWire } from './load.ts'
import type { BenchProject, Stage } from './stage.ts'

const DEVICES = [1, 16, 64]
/** V8 needs some ten thousand runs to reach a steady state. */
const WARM_UP_S = 8
const HL7 = 'x-application/hl7-v2+er7'
const ACK = 'return event.input.buildAck()'

export async function agents(stage: Stage, seconds: number): Promise<readonly Figure[]> {
  await stage.start('worker')
  const project = await stage.openProject()
  const path = await project.deploy(ACK)
  const agent = await connect(stage.baseUrl, project, await createAgent(stage, project, path))
  const figures: Figure[] = []
  await measure(Math.max(...DEVICES), WARM_UP_S, (device) => agent.transmit(device))
  for (const devices of DEVICES) {
    const feed = await measure(devices, seconds, (device) => agent.transmit(device))
    const wire = await openWire(stage.baseUrl, devices, project.token, HL7)
    const calls = await wire.load(seconds, (device) => ['POST', path, anAdt(`${device}`)])
    wire.close()
    figures.push({
      what: `HL7v2 messages through one agent, ${devices} at a time, to $execute`,
      ours: describe(feed),
      limit: describe(calls),
      ratio: (feed.perSecond / calls.perSecond).toFixed(2),
      required: devices === Math.max(...DEVICES) ? '>= 200/s' : '',
    })
  }
  agent.close()
  return figures
}

function describe({ perSecond, p50Ms, p99Ms }: Load): string {
  return `${Math.round(perSecond)}/s, p50 ${p50Ms.toFixed(1)} ms, p99 ${p99Ms.toFixed(1)} ms`
}

/** An admission message; segments end with CR. */
function anAdt(controlId: string): string {
  return [
    `MSH|^~\\&|ADT|WARD|EHR|CLINIC|20260101120000||ADT^A01|${controlId}|P|2.5.1`,
    'PID|1||4711^^^CLINIC||Chalmers^Peter',
  ].join('\r')
}

/** Returns the id of an Agent with one channel to the bot of this path. */
async function createAgent(
  { services: { repository } }: Stage,
  { principal }: BenchProject,
  path: string,
): Promise<string> {
  const bot = /Bot\/[^/]+/.exec(path)?.[0] ?? ''
  const endpoint = await repository.create(principal, {
    resourceType: 'Endpoint',
    status: 'active',
    connectionType: { code: 'hl7v2-mllp' },
    payloadType: [{ text: 'HL7v2' }],
    address: 'mllp://0.0.0.0:56000',
  })
  const channel = {
    name: 'adt',
    endpoint: { reference: `Endpoint/${endpoint.id}` },
    targetReference: { reference: bot },
  }
  const agent = await repository.create(principal, {
    resourceType: 'Agent',
    name: 'Bench',
    status: 'active',
    channel: [channel],
  })
  return agent.id
}

/** Speaks the protocol of an agent's program. */
async function connect(baseUrl: string, { token }: BenchProject, agentId: string) {
  const socket = new WebSocket(`${baseUrl.replace(/^http/, 'ws')}ws/agent`)
  await once(socket, 'open')
  socket.send(JSON.stringify({ type: 'agent:connect:request', accessToken: token, agentId }))
  await once(socket, 'message')
  const waiting = new Map<string, (isOk: boolean) => void>()
  socket.on('message', (data) => {
    const frame = JSON.parse(String(data)) as Readonly<Record<string, unknown>>
    waiting.get(String(frame.callback))?.(String(frame.body).includes('MSA|AA'))
    waiting.delete(String(frame.callback))
  })
  return {
    /** True when the ACK accepts the message. */
    transmit(device: number): Promise<boolean> {
      const callback = randomUUID()
      const { promise, resolve } = Promise.withResolvers<boolean>()
      waiting.set(callback, resolve)
      const frame = {
        type: 'agent:transmit:request',
        accessToken: token,
        channel: 'adt',
        remote: `10.0.0.1:${device}`,
        contentType: HL7,
        callback,
        body: anAdt(callback),
      }
      socket.send(JSON.stringify(frame))
      return promise
    },
    close: () => socket.close(),
  }
}
