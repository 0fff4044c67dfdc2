import { readdirSync, readFileSync } from 'node:fs'
import * as core from '@medplum/core'
import t from 'tap'
import { openGuest, type Untyped } from '../../fixtures/bots/guest.ts'

const guest = openGuest()
const ours: Untyped = { ...guest.load('./hl7.cjs'), ...guest.load('./hl7-datetime.cjs') }
const folder = new URL('../../data/hl7v2/', import.meta.url)
const texts = readdirSync(folder)
  .filter((name) => name.endsWith('.hl7'))
  .map((name) => ({ name, text: readFileSync(new URL(name, folder), 'utf8') }))

/** Every component and subcomponent of a message, in order, up to one beyond the last. */
function answers(message: Untyped): string[] {
  return message.segments.flatMap((segment: Untyped) => {
    const numbers = [...segment.fields.keys(), segment.fields.length, segment.fields.length + 1]
    return numbers.flatMap((field: number) => {
      const repetitions: Untyped[][] = segment.getField(field)?.components ?? [['']]
      return repetitions.flatMap((components, repetition) =>
        [...components.keys(), components.length].flatMap((at) => [
          segment.getComponent(field, at + 1, undefined, repetition),
          segment.getComponent(field, at + 1, 0, repetition),
          segment.getComponent(field, at + 1, 1, repetition),
        ]),
      )
    })
  })
}

/** Two things of an acknowledgment follow the clock. */
function withoutTime(ack: Untyped): string {
  ack.header.setField(7, 'time')
  ack.header.setField(10, 'id')
  return ack.toString()
}

t.test('seventy messages of real systems are there to be read', async (t) => {
  t.equal(texts.length, 70)
})

for (const { name, text } of texts) {
  t.test(`${name} reads, prints, changes and is acknowledged as by the SDK`, async (t) => {
    const crText = text
      .replace(/^\ufeff/, '')
      .split(/[\r\n]+/)
      .join('\r')
      .replace(/\r+$/, '')
    const lines = crText.split('\r')
    const mine = ours.Hl7Message.parse(text)
    const theirs = core.Hl7Message.parse(crText)
    t.equal(mine.toString(), crText, 'byte-identical with CR line ends')
    t.equal(mine.segments.length, lines.length)
    t.equal(answers(mine).join('\n'), answers(theirs).join('\n'))

    for (const ackCode of ['AA', 'AE', 'AR', 'CA', 'CE', 'CR'] as const) {
      const context = theirs.context
      const given = mine.buildAck({ ackCode, errSegment: ours.Hl7Segment.parse('ERR|1', context) })
      const expected = theirs.buildAck({
        ackCode,
        errSegment: core.Hl7Segment.parse('ERR|1', context),
      })
      t.equal(withoutTime(given), withoutTime(expected))
    }

    for (const segment of mine.segments.keys()) {
      for (const message of [mine, theirs] as Untyped[]) {
        const changed = message.segments[segment]
        changed.setField(4, 'a^b&c~d')
        changed.setField(changed.fields.length + 3, 'far')
        changed.setComponent(3, 2, 'x')
        changed.setComponent(3, 3, 'y', 1)
        changed.setComponent(4, 1, 'z', undefined, 2)
      }
    }
    t.equal(mine.toString(), theirs.toString())
  })
}

const short = 'MSH|^~\\&|A|B|C|D|20200101||ADT^A01^ADT_A01|1|P|2.5\rPID|1||a&b^c~d^e\rPID|2'

t.test('only text that starts with MSH is a message', async (t) => {
  for (const text of ['', 'PID|1', '\nMSH|^~\\&', undefined, null, 5]) {
    t.throws(() => ours.Hl7Message.parse(text), { message: 'Invalid HL7 message' })
  }
})

t.test('reads incomplete headers without splitting at unnamed separators', async (t) => {
  for (const text of ['MSH', 'MSH|', 'MSH|^', 'MSH|^|A', 'MSH|^~\\&#|A', 'MSH*:*A:B']) {
    t.equal(ours.Hl7Message.parse(text).toString(), text)
  }
  t.equal(ours.Hl7Message.parse('MSH*:*A:B').header.getComponent(3, 2), 'B')
})

t.test('MSH counts its separators as fields one and two and keeps them', async (t) => {
  const { header } = ours.Hl7Message.parse(short)
  t.equal(String(header.getField(1)), '|')
  t.equal(String(header.getField(2)), '^~\\&')
  t.equal(String(header.getField(3)), 'A')
  t.equal(String(header.get(2)), 'A')
  t.equal(header.setField(1, '*'), false)
  t.equal(header.setField(2, '*'), false)
  t.equal(header.setComponent(2, 1, '*'), false)
  t.equal(header.setField(3, 'Z'), true)
  t.equal(header.toString().slice(0, 12), 'MSH|^~\\&|Z|B')
})

t.test('absent parts are empty text, and impossible places cannot be set', async (t) => {
  const pid = ours.Hl7Message.parse(short).getSegment('PID')
  t.equal(pid.getComponent(3, 1, undefined, 7), '')
  t.equal(pid.getComponent(30, 1), '')
  t.equal(pid.getField(30), undefined)
  t.equal(pid.setField(-1, 'x'), false)
  t.equal(pid.setComponent(30, 1, 'x'), false)
  t.equal(pid.setComponent(3, 0, 'x'), false)
  t.equal(pid.toString(), 'PID|1||a&b^c~d^e')
})

const replacements: [number | string, string, boolean, string][] = [
  ['PID', 'PID|9', true, 'PID|9\rPID|2'],
  [2, 'OBX|1', true, 'PID|1||a&b^c~d^e\rOBX|1'],
  [99, 'OBX|1', true, 'PID|1||a&b^c~d^e\rPID|2\rOBX|1'],
  ['ZZZ', 'ZZZ|1', false, 'PID|1||a&b^c~d^e\rPID|2'],
  [0, 'PID|3', false, 'PID|1||a&b^c~d^e\rPID|2'],
  [1, 'MSH|^~\\&|Q', false, 'PID|1||a&b^c~d^e\rPID|2'],
]

for (const [place, segment, isSet, rest] of replacements) {
  t.test(`setting ${segment} at ${place} answers ${isSet}`, async (t) => {
    const message = ours.Hl7Message.parse(short)
    t.equal(message.setSegment(place, ours.Hl7Segment.parse(segment, message.context)), isSet)
    t.equal(message.toString().split('\r').slice(1).join('\r'), rest)
    t.equal(core.Hl7Message.parse(short).setSegment(place, core.Hl7Segment.parse(segment)), isSet)
  })
}

t.test('an acknowledgment speaks with the separators and the version of its message', async (t) => {
  const ack = ours.Hl7Message.parse('MSH*:~\\&*S*SF*R*RF*2020**ADT:A01:ADT_A01*ID1*T').buildAck()
  t.match(ack.toString(), /^MSH\*:~\\&\*R\*RF\*S\*SF\*[\d.]+\*\*ACK:A01:ACK\*\d+\*P\*2\.5\.1\r/)
  t.match(ack.toString(), /\rMSA\*AA\*ID1\*OK$/)
  t.throws(() => ours.Hl7Message.parse(short).buildAck({ ackCode: 'XX' }), /XX/)
})

const readable: [string | undefined, string?][] = [
  [undefined],
  [''],
  ['2020'],
  ['202002'],
  ['20200203'],
  ['2020020304'],
  ['202002030405'],
  ['20200203040506'],
  ['20200203040506.789'],
  ['20200203040506+0100'],
  ['20200203040506.123-0530'],
  ['20200203040506', '-0500'],
  ['20200203040506', '+05:30'],
  ['20200203040506+0100', '-0500'],
]

for (const [text, tzOffset] of readable) {
  t.test(`the timestamp ${text} ${tzOffset ?? ''} is read as by the SDK`, async (t) => {
    const options = tzOffset === undefined ? {} : { tzOffset }
    t.equal(ours.parseHl7DateTime(text, options), core.parseHl7DateTime(text, options))
  })
}

t.test('fractions of a second are decimals, and the offset of a date counts', async (t) => {
  t.equal(ours.parseHl7DateTime('20200203040506.6'), '2020-02-03T04:05:06.600Z')
  t.equal(ours.parseHl7DateTime('20200203040506.6789'), '2020-02-03T04:05:06.678Z')
  t.equal(ours.parseHl7DateTime('20200203-0700'), '2020-02-03T07:00:00.000Z')
})

for (const text of [
  'abc',
  '2020-02-03',
  '20200230',
  '20201332',
  '99',
  '00000000',
  '20200203T0405',
]) {
  t.test(`rejects ${text} as a timestamp`, async (t) => {
    t.equal(ours.parseHl7DateTime(text), undefined)
  })
}

for (const date of [
  '2020-01-02T03:04:05Z',
  '2020-01-02T03:04:05.678Z',
  '2020-01-02',
  new Date(0),
]) {
  t.test(`${date} is written as by the SDK`, async (t) => {
    t.equal(ours.formatHl7DateTime(date), core.formatHl7DateTime(date))
  })
}

t.test('milliseconds are written with three digits', async (t) => {
  t.equal(ours.formatHl7DateTime(new Date(5)), '19700101000000.005')
  t.throws(() => ours.formatHl7DateTime('bad'))
})
