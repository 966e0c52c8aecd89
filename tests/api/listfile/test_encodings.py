"""Old encodings of short files: Thai of any length is read, and each reading says what it took."""

import io
from contextlib import suppress
from pathlib import Path

import pytest

from mailprobe.api.listfile.opening import open_list
from mailprobe.api.listfile.survey import BadList, survey

THAI = [
    *["สมชาย", "สมหญิง", "กรุงเทพ", "พิมพ์", "บริษัท", "ณัฐ", "วิชัย", "ศรีสุข", "วัฒนา", "ณัฐวุฒิ", "น้ำฝน"],
    *["แก้ว", "เพ็ญ", "ชัยวัฒน์", "สุรีย์", "ประยุทธ์", "จันทร์โอชา", "ทักษิณ", "ชินวัตร", "ยิ่งลักษณ์"],
    *["อภิสิทธิ์", "เวชชาชีวะ", "พงษ์", "เกาะ", "สวัสดีค่ะ", "ราคา๕๐"],
]  # fmt: skip
OTHERS = {
    "cp1251": "ИВАНОВ ПЕТРОВ КУЗНЕЦОВ МАРИЯ Иван Анна Алексей НОВИКОВ МОРОЗОВ ОЛЕГ ЕЛЕНА",
    "koi8_r": "Иван Мария Анна Алексей Дмитрий Ольга Андрей Юлия иван анна москва",
    "cp1253": "Γιώργος Νίκος ΓΙΩΡΓΟΣ Μαρία Ελένη ΝΙΚΟΣ",
    "cp1255": "דוד כהן משה לוי שרה",
    "cp1256": "محمد علي فاطمة أحمد",
    "gb18030": "王小明 李伟 张三 刘洋 陈静 北京 上海",
    "big5": "陳大文 王小明 林志玲 台北",
    "euc_jp": "山田太郎 鈴木 佐藤 東京 たなか",
    "cp932": "山田太郎 鈴木 ﾀﾅｶ ﾊﾅｺ ﾔﾏﾓﾄ ｻﾄｳ",
    "cp1250": "Łukasz ŻÓŁĆ Dvořák ŠÁRKA",
    "cp1252": "José MÜLLER Zoë ÅSA ÉÈÀ",
    "cp1254": "Şükrü YILMAZ ÇAĞLAR",
}


def encoding_of(rows: list[str], encoding: str, domain: str = "shop.com") -> str:
    lines = [f"u{number}@{domain},{name}" for number, name in enumerate(rows)]
    octets = "\n".join(["email,name", *lines, ""]).encode(encoding)
    return survey(io.BytesIO(octets), "list.csv").encoding


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 200])
def test_thai_is_read_in_a_file_of_any_length(rows: int) -> None:
    for first in range(len(THAI)):
        names = [THAI[(first + number) % len(THAI)] for number in range(rows)]
        assert encoding_of(names, "cp874") == "cp874", names


@pytest.mark.parametrize("name", ["ธนกร", "ฮานา", "กีฬา", "ก", *THAI])
def test_a_country_decides_where_a_thai_name_is_no_proof(name: str) -> None:
    assert encoding_of([name], "cp874", "shop.co.th") == "cp874"


@pytest.mark.parametrize(
    ("encoding", "name"), [(each, name) for each in OTHERS for name in OTHERS[each].split()]
)
def test_a_name_in_another_script_is_not_taken_for_thai(encoding: str, name: str) -> None:
    with suppress(BadList):  # it is refused, with the option that names the encoding
        assert encoding_of([name], encoding) != "cp874"


def test_thai_in_utf8_with_a_damaged_line_is_not_read_in_an_old_encoding() -> None:
    rows = "".join(f"u@shop.co.th,{name}\n" for name in THAI).encode()
    with pytest.raises(BadList, match="is not UTF-8, as the rest of the file is"):
        survey(io.BytesIO(b"email,name\n" + rows + b"u@shop.co.th,\xe0\xb8\n"), "list.csv")


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize(
    ("encoding", "name"), [("cp1252", "José"), ("cp1250", "Łukasz"), ("cp874", "สมชาย")]
)
def test_a_short_file_says_which_encoding_was_taken(
    tmp_path: Path, encoding: str, name: str, rows: int
) -> None:
    lines = [f"u{number}@shop.com,{name}" for number in range(rows)]
    (path := tmp_path / "list.csv").write_text("\n".join(["email,name", *lines]), encoding)
    with open_list(path) as source:
        assert len(list(source.rows())) == rows
        taken = source.survey.encoding
        assert f"{path} is read as {taken}; --encoding names another encoding" in list(
            source.remarks()
        )
