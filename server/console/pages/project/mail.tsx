/** The mail server of the project: four settings, and a password among the secrets. */
import { Group, PasswordInput, Stack, Text, TextInput } from '@mantine/core'
import type { ProjectSetting } from '@medplum/fhirtypes'
import { changedNames } from '../../client/merging.ts'
import { ConfirmedAction } from '../../parts/action.tsx'
import { type Fields, Form, type Typed } from '../../parts/form.tsx'
import { Hint } from '../../parts/text.tsx'
import project from '../../texts/project.json' with { type: 'json' }
import { texts } from '../../texts/texts.ts'
import { changeList, withItems } from './lists.ts'
import { SettingKey } from './setting-key.tsx'

const words = project.mail
const PASSWORD = 'smtpPassword'
const KEYS = { host: 'smtpHost', port: 'smtpPort', user: 'smtpUser', from: 'smtpFrom' } as const
type Field = keyof typeof KEYS
const FIELDS = Object.keys(KEYS) as Field[]
const HINTS = {
  host: 'mail.example.org',
  port: '587',
  user: '',
  from: 'Clinic <clinic@example.org>',
}

type Values = Record<Field | 'password', string>

interface Props {
  readonly address: string
  readonly settings: readonly ProjectSetting[]
  readonly secrets: readonly ProjectSetting[]
}

export function Mail({ address, settings, secrets }: Props) {
  const hasPassword = secrets.some(({ name }) => name === PASSWORD)
  const value = (field: Field) => {
    const found = settings.find(({ name }) => name === KEYS[field])
    return String(found?.valueString ?? found?.valueInteger ?? '')
  }
  const saved: Values = {
    host: value('host'),
    port: value('port'),
    user: value('user'),
    from: value('from'),
    password: '',
  }
  const writePassword = (next: readonly ProjectSetting[]) =>
    changeList(address, 'secret', (all) => withItems(all, [PASSWORD], next))
  const writeSettings = (names: readonly string[], next: readonly ProjectSetting[]) =>
    changeList(address, 'setting', (all) => withItems(all, names, next))
  // A server that is used before its password would reject mails.
  const save = async ({ password, ...values }: Values, { base }: Typed<Values>) => {
    if (password !== '') await writePassword([{ name: PASSWORD, valueString: password }])
    const changed = changedNames(base, { ...values, password: base.password })
    const names = FIELDS.filter((field) => changed.has(field)).map((field): string => KEYS[field])
    return await writeSettings(
      names,
      toSettings(values).filter(({ name }) => names.includes(name)),
    )
  }
  const remove = async () => {
    await writeSettings(Object.values(KEYS), [])
    return await writePassword([])
  }
  return (
    <Stack>
      <Hint>{words.hint}</Hint>
      {/* Without drafts: secrets are never stored in the browser. */}
      <Form<Values, unknown> saved={saved} send={save} done={texts.common.saved}>
        {(fields) => <Inputs fields={fields} hasPassword={hasPassword} />}
      </Form>
      {(saved.host !== '' || hasPassword) && (
        <Group>
          <ConfirmedAction
            label={words.remove}
            confirm={texts.common.delete}
            send={remove}
            done={texts.common.saved}
          >
            <Text size="sm">{words.removeHint}</Text>
          </ConfirmedAction>
        </Group>
      )}
    </Stack>
  )
}

interface InputsProps {
  readonly fields: Fields<Values>
  readonly hasPassword: boolean
}

function Inputs({ fields: { text }, hasPassword }: InputsProps) {
  const describe = (field: Field | 'password', key: string) => {
    const { label, meaning } = words[field]
    const description = (
      <>
        {meaning} <SettingKey name={key} />
      </>
    )
    return { label, description, ...text(field) }
  }
  return (
    <>
      {FIELDS.map((field) => (
        <TextInput
          key={field}
          {...describe(field, KEYS[field])}
          placeholder={HINTS[field]}
          autoComplete="off"
        />
      ))}
      <PasswordInput
        {...describe('password', PASSWORD)}
        placeholder={hasPassword ? words.kept : ''}
        autoComplete="new-password"
        visibilityToggleButtonProps={{ 'aria-label': project.showValue }}
      />
    </>
  )
}

function toSettings(values: Readonly<Record<Field, string>>): ProjectSetting[] {
  return FIELDS.flatMap((field): ProjectSetting[] => {
    const value = values[field].trim()
    if (value === '') return []
    const name = KEYS[field]
    const isPort = field === 'port' && /^\d{1,9}$/.test(value)
    return [isPort ? { name, valueInteger: Number(value) } : { name, valueString: value }]
  })
}
