/** Form that invites a person to the project. */
import { Group, NativeSelect, Paper, Switch, TextInput } from '@mantine/core'
import type { ProjectMembership } from '@medplum/fhirtypes'
import { useLocation } from 'wouter'
import { medplum, useMe } from '../../client/session.ts'
import { Form } from '../../parts/form.tsx'
import { Page } from '../../parts/page.tsx'
import { texts } from '../../texts/texts.ts'
import { AccessFields, noAccess, toAccessElements } from './access.tsx'
import { PickedRecord } from './parameters.tsx'

const words = texts.members
const TYPES = ['Practitioner', 'Patient', 'RelatedPerson']
const nobody = {
  ...noAccess,
  resourceType: 'Practitioner',
  firstName: '',
  lastName: '',
  email: '',
  patient: '',
  sendEmail: true,
}

export function Invite() {
  const { project } = useMe()
  const [, go] = useLocation()
  const send = (values: typeof nobody): Promise<ProjectMembership> => {
    const { resourceType, firstName, lastName, email, patient, sendEmail } = values
    return medplum.post(`admin/projects/${project.id}/invite`, {
      resourceType,
      firstName,
      lastName,
      email: email.trim(),
      ...(resourceType === 'RelatedPerson' ? { patient: { reference: patient } } : {}),
      sendEmail,
      membership: toAccessElements(values),
    })
  }
  return (
    <Page title={words.invite} hint={words.inviteHint}>
      <Paper maw={640}>
        <Form
          name="invite"
          saved={nobody}
          send={send}
          done={words.invited}
          after={({ id }) => go(`/members/member/${id}`)}
          submit={words.invite}
        >
          {(fields) => (
            <>
              <Group grow align="start">
                <TextInput required label={words.firstName} {...fields.text('firstName')} />
                <TextInput required label={words.lastName} {...fields.text('lastName')} />
              </Group>
              <TextInput required type="email" label={words.email} {...fields.text('email')} />
              <NativeSelect
                label={words.profile}
                description={words.profileHint}
                data={TYPES}
                {...fields.text('resourceType')}
              />
              {fields.values.resourceType === 'RelatedPerson' && (
                <PickedRecord
                  label={words.patient}
                  reference={fields.values.patient}
                  targets={['Patient']}
                  error={fields.error('patient')}
                  onPick={(patient) => fields.set({ patient })}
                />
              )}
              <Switch label={words.sendEmail} {...fields.flag('sendEmail')} />
              <AccessFields fields={fields} />
            </>
          )}
        </Form>
      </Paper>
    </Page>
  )
}
